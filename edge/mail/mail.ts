import type { Settings } from '../settings.ts';

export interface Mail {
  to: string;
  subject: string;
  text: string;
  /** Loads nothing from anywhere: a picture would tell who reads it. */
  html: string;
}

/** How long the mail service has to take a mail. */
export const MAIL_TIMEOUT_MS = 10_000;

/** Whether mail can be sent at all. */
export const sendsMail = ({ MAIL_API_URL }: Settings): boolean => MAIL_API_URL !== undefined;

/** Statuses that say something of this mail, whenever it is sent: an address that is none, for one. */
const REFUSED_FOR_GOOD = new Set([400, 413, 422]);

export class MailRefused extends Error {}

/**
 * Hands a mail to the service at `MAIL_API_URL`: one JSON POST with a bearer key.
 * @param id of this mail; the same when it is sent again, so that a service that knows `Idempotency-Key` sends it once
 * @throws MailRefused when it never will be taken; Error when it was not
 */
export async function sendMail(settings: Settings, mail: Mail, id: string): Promise<void> {
  const { MAIL_API_URL, MAIL_API_KEY, MAIL_FROM } = settings;
  if (MAIL_API_URL === undefined) throw new Error('MAIL_API_URL is not set');
  const response = await fetch(MAIL_API_URL, {
    method: 'POST',
    headers: {
      'Content-Type': 'application/json',
      'Idempotency-Key': id,
      ...(MAIL_API_KEY && { Authorization: `Bearer ${MAIL_API_KEY}` }),
    },
    body: JSON.stringify({ from: MAIL_FROM, ...mail }),
    // A redirect would be followed with a GET, whose 200 says nothing of the mail.
    redirect: 'manual',
    signal: AbortSignal.timeout(MAIL_TIMEOUT_MS),
  });
  await response.body?.cancel();
  if (response.ok) return;
  const reason = `the mail service answered ${response.status}`;
  throw REFUSED_FOR_GOOD.has(response.status) ? new MailRefused(reason) : new Error(reason);
}
