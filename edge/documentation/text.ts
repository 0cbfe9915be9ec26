import { html } from 'hono/html';

/** HTML with all texts escaped. */
export type Markup = ReturnType<typeof html>;

export const schemaLink = (name: string) => html`<a href="#schema-${name}">${name}</a>`;

/** One line of text. Text between backticks is code, and a link if it is one of the `named` schemas. */
export function line(text: string, named: readonly string[] = []): Markup {
  const code = (part: string) => html`<code>${named.includes(part) ? schemaLink(part) : part}</code>`;
  return html`${text.split('`').map((part, n) => (n % 2 === 1 ? code(part) : part))}`;
}

/** Paragraphs, separated by empty lines. */
export function paragraphs(text = ''): Markup {
  const parts = text.split(/\n\s*\n/).filter((part) => part.trim() !== '');
  return html`${parts.map((part) => html`<p>${line(part)}</p>`)}`;
}

/** A code block: a string as it is, any other value as JSON; nothing for undefined. */
export function sample(value: unknown): Markup {
  if (value === undefined) return html``;
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2);
  return html`<pre><code>${text}</code></pre>`;
}
