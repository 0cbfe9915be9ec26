import { html } from 'hono/html';
import type { Mail } from './mail.ts';

/** A mail of paragraphs. @param paragraphs may contain text from users */
export const plainMail = (to: string, subject: string, paragraphs: readonly string[]): Mail => ({
  to,
  subject,
  text: `${paragraphs.join('\n\n')}\n`,
  html: paragraphs.map((paragraph) => html`<p>${paragraph}</p>`).join('\n'),
});

/** A user's text in one line, for a subject. */
export const inOneLine = (text: string): string => text.replaceAll(/[\s\p{C}]+/gu, ' ');
