import { PublicProtocol } from 'paseto';
import { ImportPublicKeyFactory, VerifyFactory } from 'paseto/v4/public';
import { identityOf } from '../../../edge/authentication/authenticate.ts';
import {
  PASETO_HEADER,
  type PasetoParts,
  preAuthEncode,
  splitPaseto,
} from '../../../edge/authentication/paseto.ts';
import { Paserk } from '../../../edge/authentication/provider-keys.ts';
import { unwrap } from '../../../edge/errors.ts';

/** Verifies the same tokens in several ways, as often as the request says; the clock is the caller's. */

export interface VerificationOrder {
  way: keyof typeof WAYS | 'prepare';
  /** How often each of the tokens. */
  times: number;
  /** Of `prepare`, which does all that is not to be measured. */
  tokens?: string[];
  paserk?: string;
}

interface Env {
  IDP_URL: string;
}

const v4 = new PublicProtocol(ImportPublicKeyFactory, VerifyFactory);
const utf8 = new TextEncoder();

let tokens: string[] = [];
let signed: { message: Uint8Array<ArrayBuffer>; signature: Uint8Array<ArrayBuffer> }[] = [];
let rawKey: CryptoKey;
let pasetoKey: Awaited<ReturnType<typeof v4.ImportPublicKey>>;
let settings: Parameters<typeof identityOf>[1]['settings'];

const signedBytes = ({ message, footer }: PasetoParts) =>
  new Uint8Array(preAuthEncode([utf8.encode(PASETO_HEADER), message, footer, new Uint8Array()]));

async function prepare(order: VerificationOrder, { IDP_URL }: Env): Promise<void> {
  const paserk = order.paserk ?? '';
  tokens = order.tokens ?? [];
  signed = tokens
    .map((token) => unwrap(splitPaseto(token)))
    .map((parts) => ({
      message: signedBytes(parts),
      signature: new Uint8Array(parts.signature),
    }));
  rawKey = await crypto.subtle.importKey('raw', new Uint8Array(Paserk.parse(paserk)), 'Ed25519', false, [
    'verify',
  ]);
  pasetoKey = await v4.ImportPublicKey(paserk as `k4.public.${string}`);
  settings ??= {
    SERVICE_NAME: 'branchgate',
    BASE_URL: 'https://api.example.com',
    JWT_KEYS: [],
    IDP_URL,
    BASE_IDP_KEY_ENDPOINT: `${IDP_URL}/keys`,
  };
}

const WAYS = {
  /** As the gateway does: with noble the first time, after that from memory. */
  gateway: async (n: number, context: ExecutionContext) => {
    const moment = { now: new Date(), waitUntil: (work: Promise<unknown>) => context.waitUntil(work) };
    const { gid } = unwrap(await identityOf(tokens[n] ?? '', { settings, ...moment }));
    return gid !== '';
  },
  subtle: (n: number) => {
    const part = signed[n];
    return part ? crypto.subtle.verify('Ed25519', rawKey, part.signature, part.message) : false;
  },
  paseto: async (n: number) => (await v4.Verify(pasetoKey, tokens[n] ?? '')).claims !== undefined,
};

export default {
  async fetch(request, env, context) {
    const order = await request.json<VerificationOrder>();
    if (order.way === 'prepare') {
      await prepare(order, env);
      return new Response();
    }
    const verify = WAYS[order.way];
    for (let time = 0; time < order.times; time++) {
      for (let n = 0; n < tokens.length; n++) {
        if (!(await verify(n, context))) throw new Error(`${order.way} refused a token`);
      }
    }
    return new Response();
  },
} satisfies ExportedHandler<Env>;
