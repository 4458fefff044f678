// Values that callers pass in and get back: costs, limits, decisions and settlements.

/** Dimensions of a request, such as `{ userId: "u1" }`. */
export type Dimensions = Readonly<Record<string, string>>;

/** Dimensions of a request of a client. A value that the client did not send is undefined. */
export type ClientDimensions = Readonly<Record<string, string | undefined>>;

/**
 * The cost of a request: an estimate before the work, or the actual cost after it. `usd` is a decimal text, because
 * money is never a binary float. `inputChars`, `maxOutputTokens` and `n` are only valid in an estimate.
 */
export interface Cost {
  requests?: number;
  inputTokens?: number;
  outputTokens?: number;
  usd?: string;
  cachedInputTokens?: number;
  cacheWriteTokens?: number;
  reasoningTokens?: number;
  queryTokens?: number;
  contextTokens?: number;
  inputChars?: number;
  maxOutputTokens?: number;
  n?: number;
}

/** A limit that a request brings along, checked in addition to the rules of the service. */
export interface InlineLimit {
  name: string;
  key: string;
  /** An amount and a window, such as `100/min` or `20000 tokens/min`. */
  limit: string;
}

/** Options of a request. */
export interface RequestOptions {
  /** A cost, or a number of requests. */
  cost?: Cost | number | undefined;
  limits?: readonly InlineLimit[] | undefined;
  /** Time until an estimate expires that is not settled: seconds, or a text such as `2min`. */
  hold?: number | string | undefined;
  /** Id of the work: the same id again is charged once. */
  id?: string | undefined;
}

/** Options of a request that waits for its turn. */
export interface WaitOptions extends Omit<RequestOptions, "id"> {
  /** Longest wait in milliseconds; a longer one is denied. */
  waitMaxMs?: number | undefined;
  /** Ends the wait and gives the booking back. */
  signal?: AbortSignal | undefined;
}

/** One limit that was checked, with its usage. */
export interface Scope {
  name: string;
  window: string;
  limit: number;
  current: number;
  remaining: number;
  resetAt: string;
  shadow?: boolean;
}

/** The answer to a request. `status`, `headers` and `body` can be passed on to the client of the application. */
export interface Decision {
  allowed: boolean;
  status: number;
  /** `failOpen` and `failClosed`: the service did not answer, and `onUnavailable` decided. */
  source: "service" | "failOpen" | "failClosed";
  id?: string;
  handle?: string;
  reason?: string;
  scopeHit?: string;
  detail?: string;
  /** Time until the request would fit; absent if it was admitted or never fits. */
  retryAfterMs?: number;
  /** Time until the lease or the reservation ends, counted from the decision. */
  leaseMs?: number;
  replayed: boolean;
  maxOutputTokens?: number;
  scopes: readonly Scope[];
  /** Rate limit header fields, with names in lower case. */
  headers: Readonly<Record<string, string>>;
  body: string;
}

/** The answer to a settlement. `metadata` has fields that an API can pass on to its own client. */
export interface Settlement {
  /** False if the admission had no handle or the service did not answer: the reservation then expires. */
  recorded: boolean;
  replayed: boolean;
  metadata: Readonly<Record<string, unknown>>;
}

/** Counters of a limiter since its creation. */
export interface Stats {
  allowed: number;
  denied: number;
  /** Requests that were admitted because the service did not answer. */
  failedOpen: number;
  /** Requests that were denied because the service did not answer. */
  failedClosed: number;
  /** Settlements, releases and cancellations that the service did not record. */
  unsettled: number;
}
