// Errors of the package. A denial is an answer; only `lease`, `untilReady` and `pacedFetch` throw it.
import type { Decision } from "./types.js";

/** Base class of all errors of this package. */
export class SluicegateError extends Error {
  override name = this.constructor.name;
}

/** The limiter denies the request. */
export class Denied extends SluicegateError {
  constructor(readonly decision: Decision) {
    super(decision.detail ?? decision.reason ?? "denied");
  }

  /** Time until the request would fit; undefined if it never fits. */
  get retryAfterMs(): number | undefined {
    return this.decision.retryAfterMs;
  }
}

/** The service does not answer in time, and `onUnavailable` is `"throw"`. */
export class Unavailable extends SluicegateError {}

/** An error answer of the service, such as an invalid field or an expired handle. */
export class ApiError extends SluicegateError {
  constructor(
    readonly status: number,
    readonly detail: string,
    readonly field?: string,
    /** A word for programs, such as `NO_QUEUE`; only errors of queues have one. */
    readonly reason?: string,
  ) {
    super(`${status}: ${detail}`);
  }
}

/** The lease of a message has ended: another consumer has the message, or will get it. */
export class LeaseLost extends ApiError {}
