// Finds out when the body of a fetch `Response` ends.

/** Returns a response with the same content that calls `ended` once: at the end of its body, or when it is given up. */
export function onBodyEnd(response: Response, ended: () => void): Response {
  if (response.body === null) {
    ended();
    return response;
  }
  const reader = response.body.getReader();
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const { done, value } = await reader.read();
        if (done) {
          ended();
          controller.close();
        } else {
          controller.enqueue(value);
        }
      } catch (error) {
        ended();
        controller.error(error);
      }
    },
    async cancel(reason) {
      ended();
      await reader.cancel(reason);
    },
  });
  const { status, statusText, headers, url } = response;
  const copy = new Response(body, { status, statusText, headers });
  Object.defineProperty(copy, "url", { value: url });
  return copy;
}
