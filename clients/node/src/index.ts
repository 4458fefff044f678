// Client of Sluicegate, a rate limiter for requests, tokens, dollars and concurrency.
export { ApiError, Denied, SluicegateError, Unavailable } from "./errors.js";
export { type Lease, Limiter, type LimiterOptions, type UnavailablePolicy } from "./limiter.js";
export type {
  Cost,
  Decision,
  Dimensions,
  InlineLimit,
  RequestOptions,
  Scope,
  Settlement,
  Stats,
  WaitOptions,
} from "./types.js";
