import { type Mail, plainMail } from '../mail/mail.ts';
import { type ChallengeKind, type ChallengeRequest, CODE_TTL_MS, INVITATION_TTL_MS } from './challenge.ts';

const MINUTES = CODE_TTL_MS / 60_000;
const DAYS = INVITATION_TTL_MS / 86_400_000;

const PURPOSE: Record<Exclude<ChallengeKind, 'invitation'>, string> = {
  sign_up: 'to finish your sign-up',
  magic_link: 'to sign in',
  password_reset: 'to set a new password',
  second_factor: 'to confirm your sign-in',
};

interface MailText {
  subject: string;
  /** The paragraphs. */
  lines: string[];
}

/** Names who invites, because the invited person joins a tenant in which others can see what they make. */
function invitationText(
  serviceName: string,
  { challengeId, invitation }: ChallengeRequest,
  code: string | null,
): MailText {
  if (!invitation) throw new Error('an invitation without its text');
  const { inviter, role } = invitation;
  const invited = `${inviter} invites you to join a team at ${serviceName} with the role ${role}.`;
  const ignore = 'If you do not know the sender, ignore this mail.';
  const rest =
    code === null
      ? [
          'This e-mail address already has an account, and an account belongs to one team.',
          'To join, ask for an invitation of another address.',
        ]
      : [
          `Use this code to accept the invitation ${challengeId}:`,
          code,
          `It expires in ${DAYS} days. Do not share it.`,
        ];
  return { subject: `Your invitation to ${serviceName}`, lines: [invited, ...rest, ignore] };
}

const accountExistsText = (serviceName: string): MailText => ({
  subject: `You already have a ${serviceName} account`,
  lines: [
    `Someone tried to create a ${serviceName} account with this e-mail address, but you already have an account.`,
    'If it was you, sign in with your password or request a code by e-mail.',
    'If it was not you, ignore this mail. Nothing was changed.',
  ],
});

const codeText = (serviceName: string, purpose: string, code: string): MailText => ({
  subject: `Your ${serviceName} code`,
  lines: [
    `Use this code ${purpose}:`,
    code,
    `It expires in ${MINUTES} minutes. Do not share it.`,
    'If you did not request it, ignore this mail.',
  ],
});

/**
 * The mail of a challenge, or null when none is sent. It contains no link, because mail scanners open links,
 * and no text from the request, because anyone can have this mail sent to any address.
 * @param code null when no code is right
 */
export function signInMail(serviceName: string, request: ChallengeRequest, code: string | null): Mail | null {
  const { kind, address, mail } = request;
  if (mail === 'none') return null;
  const textOf = () => {
    if (kind === 'invitation') return invitationText(serviceName, request, code);
    return code === null ? accountExistsText(serviceName) : codeText(serviceName, PURPOSE[kind], code);
  };
  const { subject, lines } = textOf();
  return plainMail(address, subject, lines);
}
