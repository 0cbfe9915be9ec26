import { expect } from 'vitest';
import { LOCAL_PASSWORD } from '../../../dev/identity-provider/accounts.ts';

export interface Page {
  address: URL;
  response: Response;
}

interface Cookie {
  name: string;
  value: string;
  path: string;
}

/** Tests restart servers at the same address, so connections are not reused. */
const NO_KEEP_ALIVE = { connection: 'close' };

/**
 * A minimal browser: follows redirects, stores cookies by path (all tests use one host) and submits forms.
 */
export class Browser {
  #cookies: Cookie[] = [];
  readonly #follows: (address: URL) => boolean;

  /** @param follows whether a redirect is followed; otherwise `open` returns its target */
  constructor(follows: (address: URL) => boolean) {
    this.#follows = follows;
  }

  get cookies(): readonly Cookie[] {
    return this.#cookies;
  }

  async open(address: string, form?: Record<string, string>): Promise<Page> {
    const response = await fetch(address, {
      redirect: 'manual',
      headers: { ...NO_KEEP_ALIVE, cookie: this.#cookiesFor(new URL(address)) },
      ...(form && { method: 'POST', body: new URLSearchParams(form) }),
    });
    for (const line of response.headers.getSetCookie()) this.#storeCookie(line);
    const location = response.headers.get('location');
    if (location === null) return { address: new URL(address), response };
    const next = new URL(location, address);
    return this.#follows(next) ? this.open(next.href) : { address: next, response };
  }

  /** Opens an address that leads to the provider's form, and submits the form. */
  async signIn(address: string, email: string, password = LOCAL_PASSWORD): Promise<Page> {
    const form = await this.open(address);
    const html = await form.response.text();
    expect(html).toMatch(/<form method="post">.*name="email".*name="password"/s);
    return this.open(form.address.href, { email, password });
  }

  #cookiesFor({ pathname }: URL): string {
    return this.#cookies
      .filter(({ path }) => pathname.startsWith(path))
      .map(({ name, value }) => `${name}=${value}`)
      .join('; ');
  }

  #storeCookie(line: string): void {
    const [pair = '', ...attributes] = line.split('; ');
    const [, name = '', value = ''] = /^([^=]*)=(.*)$/.exec(pair) ?? [];
    const path = attributes.find((attribute) => /^path=/i.test(attribute))?.slice('path='.length) ?? '/';
    this.#cookies = this.#cookies.filter((cookie) => cookie.name !== name || cookie.path !== path);
    if (value !== '') this.#cookies.push({ name, value, path });
  }
}
