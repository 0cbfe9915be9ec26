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

/** Tests start servers anew at one address: no connection is kept for later. */
const ONE_OFF = { connection: 'close' };

/** A browser without a window: follows redirects, keeps cookies by their path (one host is all there is), fills forms. */
export class Browser {
  #cookies: Cookie[] = [];
  readonly #follows: (address: URL) => boolean;

  /** @param follows whether it goes where it is sent; else it stops there and the address is what matters */
  constructor(follows: (address: URL) => boolean) {
    this.#follows = follows;
  }

  get cookies(): readonly Cookie[] {
    return this.#cookies;
  }

  async open(address: string, form?: Record<string, string>): Promise<Page> {
    const response = await fetch(address, {
      redirect: 'manual',
      headers: { ...ONE_OFF, cookie: this.#cookiesFor(new URL(address)) },
      ...(form && { method: 'POST', body: new URLSearchParams(form) }),
    });
    for (const line of response.headers.getSetCookie()) this.#keep(line);
    const location = response.headers.get('location');
    if (location === null) return { address: new URL(address), response };
    const next = new URL(location, address);
    return this.#follows(next) ? this.open(next.href) : { address: next, response };
  }

  /** Opens an address that leads to the provider's form, and fills it in. */
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

  #keep(line: string): void {
    const [pair = '', ...attributes] = line.split('; ');
    const [, name = '', value = ''] = /^([^=]*)=(.*)$/.exec(pair) ?? [];
    const path = attributes.find((attribute) => /^path=/i.test(attribute))?.slice('path='.length) ?? '/';
    this.#cookies = this.#cookies.filter((cookie) => cookie.name !== name || cookie.path !== path);
    if (value !== '') this.#cookies.push({ name, value, path });
  }
}
