/** A browser without pages: it follows redirects, and keeps a cookie for the host and path that set it. */
export class Browsing {
  readonly #cookies: { host: string; path: string; name: string; value: string }[] = [];
  readonly #resolve: (address: URL) => URL;

  /** @param resolve where an address is really served */
  constructor(resolve: (address: URL) => URL = (address) => address) {
    this.#resolve = resolve;
  }

  #cookiesFor({ host, pathname }: URL): string {
    return this.#cookies
      .filter((cookie) => cookie.host === host && pathname.startsWith(cookie.path))
      .map(({ name, value }) => `${name}=${value}`)
      .join('; ');
  }

  #store({ host }: URL, response: Response): void {
    for (const line of response.headers.getSetCookie()) {
      const [pair = '', ...attributes] = line.split(';').map((part) => part.trim());
      const [name = '', ...value] = pair.split('=');
      const path = attributes.find((part) => /^path=/i.test(part))?.slice('path='.length) ?? '/';
      this.#cookies.unshift({ host, path, name, value: value.join('=') });
    }
  }

  /** @param until the first redirect to such an address is not followed */
  async go(address: string, until: (address: URL) => boolean = () => false) {
    let next = this.#resolve(new URL(address));
    for (let hops = 0; hops < 20; hops++) {
      const cookie = this.#cookiesFor(next);
      const response = await fetch(next, { redirect: 'manual', headers: cookie ? { cookie } : {} });
      this.#store(next, response);
      const location = response.headers.get('location');
      if (response.status < 300 || response.status >= 400 || !location) return { response, address: next };
      const target = new URL(location, next);
      if (until(target)) return { response, address: target };
      next = this.#resolve(target);
      await response.body?.cancel();
    }
    throw new Error('too many redirects');
  }
}
