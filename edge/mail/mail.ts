import { html } from 'hono/html';
import type { Settings } from '../settings.ts';

export interface Mail {
  to: string;
  subject: string;
  text: string;
  /** Loads no remote content, which would reveal who reads it. */
  html: string;
}

/** Timeout of a request to the mail service. */
export const MAIL_TIMEOUT_MS = 10_000;

/** Whether mail can be sent at all. */
export const sendsMail = ({ MAIL_API_URL }: Settings): boolean => MAIL_API_URL !== undefined;

/** Statuses that reject this mail permanently, for instance because of an invalid address. */
const PERMANENT_REJECTIONS = new Set([400, 413, 422]);

export class MailRefused extends Error {}

/**
 * Submits a mail to the service at `MAIL_API_URL`, as a JSON POST with a bearer key.
 * @param id of the mail, sent as `Idempotency-Key`; retries use the same id so that the service can
 *   deduplicate them
 * @throws MailRefused if the mail is rejected permanently; Error if a retry can succeed
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
    // A redirect would be followed with a GET, whose 200 would not mean that the mail was accepted.
    redirect: 'manual',
    signal: AbortSignal.timeout(MAIL_TIMEOUT_MS),
  });
  await response.body?.cancel();
  if (response.ok) return;
  const reason = `the mail service responded with status ${response.status}`;
  throw PERMANENT_REJECTIONS.has(response.status) ? new MailRefused(reason) : new Error(reason);
}

/** A line break of a user's text would add a header, or a paragraph that seems to be the gateway's. */
const inOneLine = (text: string): string => text.replaceAll(/[\s\p{C}]+/gu, ' ');

/** A mail of paragraphs. @param paragraphs may contain text from users */
export function plainMail(to: string, subject: string, paragraphs: readonly string[]): Mail {
  const lines = paragraphs.map(inOneLine);
  return {
    to,
    subject: inOneLine(subject),
    text: `${lines.join('\n\n')}\n`,
    html: lines.map((line) => html`<p>${line}</p>`).join('\n'),
  };
}
