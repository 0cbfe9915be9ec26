import { html } from 'hono/html';
import type { Mail } from '../../mail/mail.ts';
import { type ChallengeKind, type ChallengeOrder, CODE_TTL_MS } from './challenge.ts';

const MINUTES = CODE_TTL_MS / 60_000;

const WHAT_FOR: Record<ChallengeKind, string> = {
  sign_up: 'to finish your sign-up',
  magic_link: 'to sign in',
  second_factor: 'to confirm that it is you who signs in',
};

/**
 * What is mailed to whom a challenge is for; null for nothing. No link, which a scanner of mails would open, and
 * nothing that the asker typed: anybody can have this sent to anybody.
 * @param code null where none is right
 */
export function signInMail(
  serviceName: string,
  { kind, address, mail }: ChallengeOrder,
  code: string | null,
): Mail | null {
  if (mail === 'none') return null;
  const lines =
    code === null
      ? [
          `Somebody asked for a new ${serviceName} account with this e-mail address. You have an account already.`,
          'If it was you, sign in with your password, or ask for a code by e-mail.',
          'If it was not you, you can ignore this mail. Nothing was changed.',
        ]
      : [
          `Use this code ${WHAT_FOR[kind]}:`,
          code,
          `It holds for ${MINUTES} minutes and works once. Give it to nobody.`,
          'If you did not ask for it, you can ignore this mail.',
        ];
  return {
    to: address,
    subject: code === null ? `You have a ${serviceName} account already` : `Your ${serviceName} code`,
    text: `${lines.join('\n\n')}\n`,
    html: lines.map((line) => html`<p>${line}</p>`).join('\n'),
  };
}
