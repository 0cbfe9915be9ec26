import type { Mail } from '../../mail/mail.ts';
import { type ChallengeKind, type ChallengeRequest, CODE_TTL_MS } from './challenge.ts';

const MINUTES = CODE_TTL_MS / 60_000;

const PURPOSE: Record<ChallengeKind, string> = {
  sign_up: 'to finish your sign-up',
  magic_link: 'to sign in',
  second_factor: 'to confirm your sign-in',
};

const escapeHtml = (text: string) => text.replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);

/**
 * The mail of a challenge, or null when none is sent. It contains no link, because mail scanners open links, and no
 * text from the request, because anyone can have this mail sent to any address.
 * @param code null when no code is right
 */
export function signInMail(
  serviceName: string,
  { kind, address, mail }: ChallengeRequest,
  code: string | null,
): Mail | null {
  if (mail === 'none') return null;
  const lines =
    code === null
      ? [
          `Someone tried to create a ${serviceName} account with this e-mail address, but you already have an account.`,
          'If it was you, sign in with your password or request a code by e-mail.',
          'If it was not you, ignore this mail. Nothing was changed.',
        ]
      : [
          `Use this code ${PURPOSE[kind]}:`,
          code,
          `It expires in ${MINUTES} minutes. Do not share it.`,
          'If you did not request it, ignore this mail.',
        ];
  return {
    to: address,
    subject: code === null ? `You already have a ${serviceName} account` : `Your ${serviceName} code`,
    text: `${lines.join('\n\n')}\n`,
    html: lines.map((line) => `<p>${escapeHtml(line)}</p>`).join('\n'),
  };
}
