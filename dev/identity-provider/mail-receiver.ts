import { mkdirSync } from 'node:fs';
import { readdir, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { json } from 'node:stream/consumers';
import type { KoaContextWithOIDC } from 'oidc-provider';
import { z } from 'zod';
import { MAIL_PATH } from '../stack/programs.ts';

const Mail = z.strictObject({
  from: z.string(),
  to: z.string(),
  subject: z.string(),
  text: z.string(),
  html: z.string(),
});

/** An `Idempotency-Key` that can be part of a file name. Any other is ignored. */
const KEY = /^[\w-]{1,100}$/;

/**
 * A mail service that writes each mail to a folder as a JSON file, whose name begins with the time of
 * delivery. Mails with the same `Idempotency-Key` are delivered once, as by hosted services.
 */
export function mailReceiver(mailDir: string, key: string) {
  mkdirSync(mailDir, { recursive: true });
  return async (ctx: KoaContextWithOIDC, next: () => Promise<unknown>) => {
    if (ctx.path !== MAIL_PATH || ctx.method !== 'POST') return next();
    ctx.assert(ctx.get('authorization') === `Bearer ${key}`, 401);
    const mail = Mail.safeParse(await json(ctx.req).catch(() => null));
    ctx.assert(mail.success, 422);
    const idempotencyKey = ctx.get('idempotency-key');
    const id = KEY.test(idempotencyKey) ? idempotencyKey : crypto.randomUUID();
    ctx.body = { id };
    const delivered = await readdir(mailDir);
    if (delivered.some((name) => name.endsWith(`_${id}.json`))) return;
    const name = `${new Date().toISOString().replaceAll(':', '-')}_${id}.json`;
    const temporary = join(mailDir, `.${name}.new`);
    await writeFile(temporary, `${JSON.stringify(mail.data, null, 2)}\n`);
    await rename(temporary, join(mailDir, name));
  };
}
