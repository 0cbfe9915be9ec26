import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Stack } from '../stack/stack.ts';
import type { PostedMail } from './mail-server.ts';

/** The mails that the stack has delivered, oldest first. */
export const deliveredMails = ({
  state,
}: {
  state: Pick<Stack['state'], 'mail_dir'>;
}): PostedMail['body'][] =>
  readdirSync(state.mail_dir)
    .filter((name) => name.endsWith('.json'))
    .sort()
    .map((name) => JSON.parse(readFileSync(join(state.mail_dir, name), 'utf8')));
