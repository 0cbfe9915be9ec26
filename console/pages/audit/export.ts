import type { AuditEvent } from '../../data/resources.ts';

const COLUMNS = [
  'created_at',
  'name',
  'actor_type',
  'actor_id',
  'actor_email',
  'project_id',
  'branch_id',
  'ip',
  'user_agent',
  'request_id',
  'metadata',
] as const;

/** A spreadsheet runs a cell that begins like a formula, and a client chooses its user agent. */
const harmless = (text: string) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);

const cellOf = (value: unknown): string => {
  const text = typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? '');
  return `"${harmless(text).replaceAll('"', '""')}"`;
};

/** The events as CSV (RFC 4180). */
export const fileOf = (events: readonly AuditEvent[]): string =>
  [
    COLUMNS.join(','),
    ...events.map((event) => COLUMNS.map((column) => cellOf(event[column])).join(',')),
  ].join('\r\n');

export function saveFile(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
