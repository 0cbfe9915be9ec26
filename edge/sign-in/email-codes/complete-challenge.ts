import type { ClientDetails } from '../../audit/actor.ts';
import { type Database, openDatabase } from '../../database/database.ts';
import type { Env } from '../../env.ts';
import { acceptInvitation } from '../accounts/accept-invitation.ts';
import { createAccount } from '../accounts/create-account.ts';
import { resetPassword } from '../accounts/set-password.ts';
import type { ChallengeKind, CodeSubmission, EmailChallenge } from './challenge.ts';

interface Solved {
  db: Database;
  challenge: EmailChallenge;
  submission: CodeSubmission;
  client: Partial<ClientDetails>;
  now: Date;
}

/** What the right code of each kind does in D1. */
const COMPLETIONS: Record<ChallengeKind, ((solved: Solved) => Promise<void>) | null> = {
  sign_up: async ({ db, challenge: { signUp, address: email }, client, now }) => {
    if (signUp) await createAccount(db, { ...signUp, email }, client, now);
  },
  invitation: async ({ db, challenge: { id: invitationId, address: email }, submission, client, now }) => {
    const { name, passwordHash } = submission;
    if (name === undefined || passwordHash === undefined)
      throw new Error('no name or password for an account');
    await acceptInvitation(db, { invitationId, email, name, passwordHash }, client, now);
  },
  password_reset: async ({ db, challenge: { address }, submission: { passwordHash }, client, now }) => {
    if (passwordHash === undefined) throw new Error('no password to set');
    await resetPassword(db, address, passwordHash, client, now);
  },
  magic_link: null,
  second_factor: null,
};

/** Does what the right code of a challenge does, if anything. It may be repeated after a failure. */
export async function completeChallenge(
  { DB }: Env,
  challenge: EmailChallenge,
  submission: CodeSubmission,
  now: Date,
): Promise<void> {
  const { client = {} } = submission;
  await COMPLETIONS[challenge.kind]?.({ db: openDatabase(DB), challenge, submission, client, now });
}
