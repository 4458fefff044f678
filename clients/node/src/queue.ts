// `Queue`: the client of a queue of a Sluicegate service, on any broker.
import { ApiError, LeaseLost, SluicegateError, Unavailable } from "./errors.js";
import { checkOptions, decodeAnswer, sleep } from "./limiter.js";
import { Transport, TransportError } from "./transport.js";

/** Options of a queue. */
export interface QueueOptions {
  /** Address of the service. Default: the variable SLUICEGATE_URL, then http://127.0.0.1:8080. */
  url?: string | undefined;
  /** Token of the service, with the scope `queue`. Default: the variable SLUICEGATE_TOKEN. */
  token?: string | undefined;
  /** Longest time of a call, in addition to the time that `receive` waits. Default: 10000. */
  timeoutMs?: number | undefined;
  /** Maximum number of connections. Default: 64. */
  connectionsMax?: number | undefined;
}

/** Options of a message to send. */
export interface SendOptions {
  /** Job id. A second message with the same id is recognised by consumers as the same job. */
  job?: string | undefined;
  /** Type of the job, such as `crawl_repo`. */
  type?: string | undefined;
  /** Time until the delivery. */
  delayMs?: number | undefined;
  /** 0 to 9; 9 is delivered first, if the broker supports priorities. */
  priority?: number | undefined;
  /** Headers that travel with the message. */
  headers?: Readonly<Record<string, string>> | undefined;
  /** Maximum number of attempts, 1 to 1000. It replaces `attempts` of the worker. */
  maxAttempts?: number | undefined;
}

/** Options of `receive`. */
export interface ReceiveOptions {
  /** Time to wait for the first message, at most 20000, which is the default. */
  waitMs?: number | undefined;
  /** Time until another consumer may get the messages, unless they are settled or extended. Default: that of the service. */
  leaseMs?: number | undefined;
  /** Ends the wait. Messages that are received in this moment come again when their lease ends. */
  signal?: AbortSignal | undefined;
}

/** Options of a worker. */
export interface WorkOptions {
  /** Number of messages that are processed at once. Default: 1. */
  concurrency?: number | undefined;
  /** Lease of a message, extended while it is processed. Default: 60000. */
  leaseMs?: number | undefined;
  /** Number of attempts before a message is a dead letter. Default: 3. */
  attempts?: number | undefined;
  /** Pause before the second attempt; it doubles each time. Default: 1000. */
  backoffMs?: number | undefined;
  /** Longest pause. Default: 60000. */
  backoffMaxMs?: number | undefined;
  /** Number of messages after which the worker ends. Default: it does not end. */
  limit?: number | undefined;
  /** Ends the worker after the messages in progress. */
  signal?: AbortSignal | undefined;
  /** Is called for everything that an operator should know. Default: `console.warn`. */
  onWarning?: ((message: string) => void) | undefined;
}

/** A message that this client has leased. Until `leaseUntil`, nobody else gets it. */
export interface Message {
  /** The body, byte by byte as its producer sent it. */
  readonly body: Buffer;
  /** Returns the body as JSON. */
  json(): unknown;
  /** Returns the body as text. */
  text(): string;
  /** Job id, the same in every queue and at every delivery. */
  readonly job: string;
  /** Id of this copy of the job. */
  readonly id: string;
  readonly type: string | undefined;
  /** Number of failed attempts: 0 the first time. */
  readonly attempt: number;
  /** Number of times that it waited for a limit. */
  readonly deferrals: number;
  /** Number of earlier deliveries that were not settled, as far as the broker knows. */
  readonly redeliveries: number;
  readonly priority: number;
  /** Maximum number of attempts, if the producer set one. It replaces `attempts` of a worker. */
  readonly maxAttempts: number | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly contentType: string | undefined;
  readonly sentAt: Date | undefined;
  readonly leaseUntil: Date;
  /** Name of the lease. */
  readonly handle: string;
}

/** The number of messages in a queue. A value that the broker does not know is undefined. */
export interface Depth {
  ready: number | undefined;
  delayed: number | undefined;
  inFlight: number | undefined;
  deadLetters: number | undefined;
  deadLetterQueue: string;
}

/** Thrown by a worker function: deliver the message later. That is no failed attempt. */
export class Defer extends SluicegateError {
  constructor(readonly delayMs = 0) {
    super(`deferred for ${delayMs} ms`);
  }
}

/** Thrown by a worker function: the message can never be processed. It becomes a dead letter at once. */
export class Reject extends SluicegateError {}

const KNOWN_OPTIONS = ["url", "token", "timeoutMs", "connectionsMax"];
const BATCH_MAX = 500;
const WAIT_MS_MAX = 20_000;
/** Time that an answer may take after a receive has waited. */
const ANSWER_MS = 5_000;
const PAUSE_MS = 200;
const PAUSE_MS_MAX = 5_000;
/** Further attempts to settle a message: the work is done, and doing it again costs more. */
const SETTLE_ATTEMPTS = 5;
const LOST = ["LEASE_LOST", "LEASE_EXPIRED", "LEASE_UNKNOWN", "OTHER_NODE", "LEASE_SETTLED"];

type Json = Record<string, unknown>;

/** A queue. One object serves the whole application. */
export class Queue {
  readonly #transport: Transport;
  readonly #path: string;

  constructor(
    readonly name: string,
    options: QueueOptions = {},
  ) {
    checkOptions("Queue", options, KNOWN_OPTIONS);
    if (name === "") throw new TypeError("name: is empty: write the name of a queue");
    const url = options.url ?? process.env.SLUICEGATE_URL ?? "http://127.0.0.1:8080";
    const token = options.token ?? process.env.SLUICEGATE_TOKEN;
    this.#transport = new Transport(url, token, options.timeoutMs ?? 10_000, options.connectionsMax ?? 64);
    this.#path = `/v1/queues/${encodeURIComponent(name)}`;
  }

  /**
   * Sends a message and returns its id. When it returns, the message survives a crash of the broker. Buffers and texts
   * are sent as they are, everything else as JSON.
   */
  async send(body: unknown, options: SendOptions = {}): Promise<string> {
    // Without a job id, a message that is sent twice could not be recognised.
    const answer = await this.#post("/send", messageJson(body, options), { idempotent: options.job !== undefined });
    return answer.id as string;
  }

  /** Sends messages and returns their ids. */
  async sendBatch(bodies: readonly unknown[], options: Omit<SendOptions, "job"> = {}): Promise<string[]> {
    const ids: string[] = [];
    for (let start = 0; start < bodies.length; start += BATCH_MAX) {
      const messages = bodies.slice(start, start + BATCH_MAX).map((body) => messageJson(body, options));
      const answer = await this.#post("/send-batch", { messages }, { idempotent: false });
      for (const result of answer.results as Json[]) {
        if (result.problem !== undefined) throw errorOf(result.problem as Json, `${ids.length} messages were sent, then one failed: `);
        ids.push(result.id as string);
      }
    }
    return ids;
  }

  /** Waits for messages and leases up to `max` of them. Returns none if the time is over. */
  async receive(max = 1, options: ReceiveOptions = {}): Promise<Message[]> {
    const waitMs = options.waitMs ?? WAIT_MS_MAX;
    options.signal?.throwIfAborted();
    const body: Json = { max, wait: span("waitMs", waitMs), format: "base64" };
    if (options.leaseMs !== undefined) body.lease = span("leaseMs", options.leaseMs);
    const answer = await this.#post("/receive", body, { timeoutMs: waitMs + ANSWER_MS, signal: options.signal });
    return (answer.messages as Json[]).map(messageOf);
  }

  /** Acknowledges a message: the work is done. Throws `LeaseLost` if another consumer has it. */
  async delete(message: Message): Promise<void> {
    await this.#settle("/ack", message, {});
  }

  /** Acknowledges messages. If some leases are lost, the others are acknowledged before it throws. */
  async deleteBatch(messages: readonly Message[]): Promise<void> {
    let failed: Json | undefined;
    for (let start = 0; start < messages.length; start += BATCH_MAX) {
      const handles = messages.slice(start, start + BATCH_MAX).map((message) => message.handle);
      const answer = await this.#post("/ack", { handles }, {});
      failed ??= (answer.results as Json[]).find((result) => result.problem !== undefined)?.problem as Json | undefined;
    }
    if (failed !== undefined) throw errorOf(failed);
  }

  /** Moves a message to the dead-letter queue, with the reason. */
  async sendToDlq(message: Message, error: Error | string): Promise<void> {
    await this.#settle("/dead-letter", message, { error: errorJson(error) });
  }

  /** Returns a message for another attempt after a failure. */
  async retry(message: Message, delayMs = 0): Promise<void> {
    await this.#settle("/retry", message, { delay: span("delayMs", delayMs) });
  }

  /** Returns a message for a later time. That is no failed attempt. */
  async defer(message: Message, delayMs = 0): Promise<void> {
    await this.#settle("/defer", message, { delay: span("delayMs", delayMs) });
  }

  /** Makes a message available to other consumers at once. */
  async requeue(message: Message): Promise<void> {
    await this.#settle("/requeue", message, {});
  }

  /** Extends the lease of a message to this length from now. Returns its end. */
  async extend(message: Message, leaseMs?: number): Promise<Date> {
    const more = leaseMs === undefined ? {} : { lease: span("leaseMs", leaseMs) };
    const answer = await this.#settle("/extend", message, more);
    return new Date(answer.leaseUntil as string);
  }

  /** Returns the number of messages. */
  async depth(): Promise<Depth> {
    const answer = await this.#call("GET", "", "", {});
    const known = (value: unknown): number | undefined => (typeof value === "number" ? value : undefined);
    return {
      ready: known(answer.ready),
      delayed: known(answer.delayed),
      inFlight: known(answer.inFlight),
      deadLetters: known(answer.deadLetters),
      deadLetterQueue: answer.deadLetterQueue as string,
    };
  }

  /** Closes all idle connections. */
  close(): void {
    this.#transport.close();
  }

  /**
   * Processes messages with `handler` until `signal` is aborted, or `limit` messages are done. Returns their number.
   *
   * A message is deleted when `handler` returns. If it throws `Defer`, the message is delivered later; if it throws
   * `Reject`, it is a dead letter; after any other error it is retried with a growing pause, and is a dead letter after
   * `attempts` attempts.
   */
  async work(handler: (message: Message) => unknown, options: WorkOptions = {}): Promise<number> {
    const { concurrency = 1, leaseMs = 60_000, limit = Infinity, signal } = options;
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new TypeError("concurrency: must be at least 1");
    const warn = options.onWarning ?? ((message: string) => console.warn(message));
    const running = new Set<Promise<void>>();
    let started = 0;
    let pauseMs = PAUSE_MS;
    while (signal?.aborted !== true && started < limit) {
      if (running.size >= concurrency) {
        await Promise.race(running);
        continue;
      }
      const room = Math.min(concurrency - running.size, limit - started, 100);
      let received: Message[];
      try {
        // Short waits, so that it notices the signal without leaving messages leased.
        received = await this.receive(room, { waitMs: running.size > 0 ? 1_000 : 2_000, leaseMs });
        pauseMs = PAUSE_MS;
      } catch (error) {
        if (!(error instanceof Unavailable)) {
          await Promise.all(running);
          throw error;
        }
        warn(`worker of ${this.name} waits: ${error.message}`);
        await sleep(pauseMs, undefined);
        pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
        continue;
      }
      for (const message of received) {
        const processing: Promise<void> = this.#process(handler, message, leaseMs, options, warn).finally(() =>
          running.delete(processing),
        );
        running.add(processing);
      }
      started += received.length;
    }
    await Promise.all(running);
    return started;
  }

  async #process(
    handler: (message: Message) => unknown,
    message: Message,
    leaseMs: number,
    options: WorkOptions,
    warn: (message: string) => void,
  ): Promise<void> {
    // A third of the lease, so that two more extensions are possible after one fails.
    const timer = setInterval(() => {
      this.extend(message, leaseMs).catch((error: Error) => {
        if (error instanceof LeaseLost) clearInterval(timer);
        warn(`lease of job ${message.job} not extended: ${error.message}`);
      });
    }, leaseMs / 3);
    try {
      let failure: unknown;
      let failed = false;
      try {
        await handler(message);
      } catch (error) {
        failed = true;
        failure = error;
      }
      await this.#finish(message, failed, failure, options, warn);
    } finally {
      clearInterval(timer);
    }
  }

  /** Settles a processed message; retries while the service does not answer. */
  async #finish(
    message: Message,
    failed: boolean,
    failure: unknown,
    options: WorkOptions,
    warn: (message: string) => void,
  ): Promise<void> {
    let pauseMs = PAUSE_MS;
    for (let attempt = 1; ; attempt += 1) {
      try {
        await (failed ? this.#fail(message, failure, options, warn) : this.delete(message));
        return;
      } catch (error) {
        // Also a mistake of the handler, such as `new Defer(-1)`: nobody else would catch it.
        if (!(error instanceof Unavailable) || attempt === SETTLE_ATTEMPTS) {
          const reason = error instanceof Error ? error.message : String(error);
          warn(`job ${message.job} of ${this.name} was not settled, and is delivered again: ${reason}`);
          return;
        }
      }
      await sleep(pauseMs, undefined);
      pauseMs = Math.min(pauseMs * 2, PAUSE_MS_MAX);
    }
  }

  async #fail(message: Message, failure: unknown, options: WorkOptions, warn: (message: string) => void): Promise<void> {
    if (failure instanceof Defer) return this.defer(message, failure.delayMs);
    const error = failure instanceof Error ? failure : String(failure);
    const text = failure instanceof Error ? failure.message : String(failure);
    const failures = message.attempt + 1;
    if (failure instanceof Reject || failures >= (message.maxAttempts ?? options.attempts ?? 3)) {
      warn(`job ${message.job} of ${this.name} is a dead letter: ${text}`);
      return this.sendToDlq(message, error);
    }
    warn(`job ${message.job} of ${this.name} failed (attempt ${failures}), retrying: ${text}`);
    const most = Math.min(options.backoffMaxMs ?? 60_000, (options.backoffMs ?? 1_000) * 2 ** Math.min(failures - 1, 30));
    return this.retry(message, Math.round(most * (0.5 + Math.random() / 2)));
  }

  #settle(path: string, message: Message, more: Json): Promise<Json> {
    return this.#post(path, { handle: message.handle, ...more }, {});
  }

  #post(path: string, body: Json, options: CallOptions): Promise<Json> {
    return this.#call("POST", path, JSON.stringify(body), options);
  }

  async #call(method: string, path: string, body: string, options: CallOptions): Promise<Json> {
    try {
      const { idempotent = true, timeoutMs, signal } = options;
      return decodeAnswer(await this.#transport.call(method, this.#path + path, body, idempotent, timeoutMs, signal));
    } catch (error) {
      if (error instanceof TransportError) {
        options.signal?.throwIfAborted();
        throw new Unavailable(`the queue ${this.name} does not answer: ${error.message}`);
      }
      if (error instanceof ApiError && error.reason !== undefined && LOST.includes(error.reason)) {
        throw new LeaseLost(error.status, error.detail, error.field, error.reason);
      }
      throw error;
    }
  }
}

interface CallOptions {
  idempotent?: boolean;
  timeoutMs?: number;
  signal?: AbortSignal | undefined;
}

function messageJson(body: unknown, options: SendOptions): Json {
  const message: Json = {};
  if (body instanceof Uint8Array) message.base64 = Buffer.from(body).toString("base64");
  else if (typeof body === "string") message.text = body;
  else if (body === undefined) throw new TypeError("body: is undefined: write a value, a text or a Buffer");
  else message.body = body;
  if (options.job !== undefined) message.job = options.job;
  if (options.type !== undefined) message.type = options.type;
  if (options.delayMs !== undefined) message.delay = span("delayMs", options.delayMs);
  if (options.priority !== undefined) message.priority = options.priority;
  if (options.headers !== undefined) message.headers = options.headers;
  if (options.maxAttempts !== undefined) message.maxAttempts = options.maxAttempts;
  return message;
}

function messageOf(answer: Json): Message {
  const body = Buffer.from(answer.base64 as string, "base64");
  return {
    body,
    json: () => JSON.parse(body.toString("utf8")) as unknown,
    text: () => body.toString("utf8"),
    job: answer.job as string,
    id: answer.id as string,
    type: answer.type as string | undefined,
    attempt: answer.attempt as number,
    deferrals: answer.deferrals as number,
    redeliveries: answer.redeliveries as number,
    priority: answer.priority as number,
    maxAttempts: answer.maxAttempts as number | undefined,
    headers: (answer.headers ?? {}) as Record<string, string>,
    contentType: answer.contentType as string | undefined,
    sentAt: answer.sentAt === undefined ? undefined : new Date(answer.sentAt as string),
    leaseUntil: new Date(answer.leaseUntil as string),
    handle: answer.handle as string,
  };
}

function errorJson(error: Error | string): Json {
  if (typeof error === "string") return { message: error };
  const text = error.message === "" ? error.name : error.message;
  const message = error instanceof Reject ? text : `${error.name}: ${text}`;
  return error.stack === undefined ? { message } : { message, stack: error.stack };
}

function errorOf(problem: Json, prefix = ""): ApiError {
  const { status, detail, field, reason } = problem as { status: number; detail: string; field?: string; reason?: string };
  const Kind = reason !== undefined && LOST.includes(reason) ? LeaseLost : ApiError;
  return new Kind(status, prefix + detail, field, reason);
}

function span(name: string, ms: number): string {
  if (!Number.isFinite(ms) || ms < 0) throw new TypeError(`${name}: must be a number of milliseconds, 0 or more`);
  return `${Math.round(ms)}ms`;
}
