/** A spreadsheet runs a cell that begins like a formula, and the values are those of others. */
const harmless = (text: string) =>
  /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+$/.test(text) ? `'${text}` : text;

const cellOf = (value: unknown): string => {
  if (value === null || value === undefined) return '';
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  return `"${harmless(text).replaceAll('"', '""')}"`;
};

/** CSV (RFC 4180); null is an empty cell without quotes. */
export const csvOf = (names: readonly string[], rows: readonly (readonly unknown[])[]): string =>
  [names.map(cellOf), ...rows.map((row) => row.map(cellOf))].map((cells) => cells.join(',')).join('\r\n');

export function saveFile(name: string, text: string, type = 'text/csv'): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
