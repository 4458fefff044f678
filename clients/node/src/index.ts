// Client of Sluicegate, a rate limiter for requests, tokens, dollars and concurrency.
export { ApiError, Denied, LeaseLost, SluicegateError, Unavailable } from "./errors.js";
export { type Lease, Limiter, type LimiterOptions, type UnavailablePolicy } from "./limiter.js";
export { ipKeyGenerator } from "./network.js";
export {
  Defer,
  type Depth,
  type Message,
  Queue,
  type QueueOptions,
  type ReceiveOptions,
  Reject,
  type SendOptions,
  type WorkOptions,
} from "./queue.js";
export type {
  ClientDimensions,
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
