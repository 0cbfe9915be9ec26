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

/** A key that can be part of a file's name; any other is passed over. */
const KEY = /^[\w-]{1,100}$/;

/**
 * A mail service that delivers into a folder, one JSON file a mail, named by when it came. One that is sent again under
 * its `Idempotency-Key` is delivered once, as hosted services do.
 */
export function mailReceiver(mailDir: string, key: string) {
  mkdirSync(mailDir, { recursive: true });
  return async (ctx: KoaContextWithOIDC, next: () => Promise<unknown>) => {
    if (ctx.path !== MAIL_PATH || ctx.method !== 'POST') return next();
    ctx.assert(ctx.get('authorization') === `Bearer ${key}`, 401);
    const mail = Mail.safeParse(await json(ctx.req).catch(() => null));
    ctx.assert(mail.success, 422);
    const given = ctx.get('idempotency-key');
    const id = KEY.test(given) ? given : crypto.randomUUID();
    ctx.body = { id };
    const delivered = await readdir(mailDir);
    if (delivered.some((name) => name.endsWith(`_${id}.json`))) return;
    const name = `${new Date().toISOString().replaceAll(':', '-')}_${id}.json`;
    const aside = join(mailDir, `.${name}.new`);
    await writeFile(aside, `${JSON.stringify(mail.data, null, 2)}\n`);
    await rename(aside, join(mailDir, name));
  };
}
