const HEADER = 'X-Branchgate-Bookmark';
/** In a bookmark's place: the newest state. */
const NEWEST = 'primary';
const READING: readonly string[] = ['GET', 'HEAD'];

type Fetch = (request: Request) => Promise<Response>;

/**
 * What this client has seen and written. The gateway reads from a copy of its records that may be some
 * seconds old, but not older than the bookmark of the request. A new client asks for the newest state,
 * because another process of the same user may just have written.
 */
export class Bookmark {
  #current = { value: NEWEST };

  /** The next read is of the newest state. */
  expectChanges(): void {
    this.#current = { value: NEWEST };
  }

  /** A `fetch` that sends the bookmark with reads, and keeps that of each response. */
  over(fetch: Fetch): Fetch {
    return async (request) => {
      if (!READING.includes(request.method)) {
        // Also when the response is lost.
        return fetch(request).finally(() => this.expectChanges());
      }
      const sent = this.#current;
      request.headers.set(HEADER, sent.value);
      const response = await fetch(request);
      const value = response.headers.get(HEADER);
      if (value === NEWEST) this.expectChanges();
      // Not after a write since the request was sent: its response may be of an earlier state.
      else if (value !== null && this.#current === sent) this.#current = { value };
      return response;
    };
  }
}
