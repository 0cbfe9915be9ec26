import { styleText } from 'node:util';
import type { Command } from 'commander';
import { bytes, relative } from '../shared/format.ts';
import { printable, printableJson, printableLine } from '../shared/printable.ts';
import { CommandError } from './exit-codes.ts';

/**
 * What the command line and the operator's tool print, which can come from a database: nothing else writes to a stream.
 * Standard output is data; everything for a person goes to standard error.
 */
export const say = (line: string): void => complain(`${line}\n`);

/** As `say`, without a line feed of its own. */
export const complain = (text: string): void => {
  process.stderr.write(printable(text));
};

/** Prints lines that a program reads as they are, such as a URL. */
export const printText = (text: string): void => {
  process.stdout.write(printable(text));
};

type Row = Readonly<Record<string, unknown>>;

/** Fields that `--json` names; empty for all, null without `--json`. */
function jsonFields(command: Command): string[] | null {
  const { json } = command.optsWithGlobals<{ json?: string | true }>();
  if (json === undefined) return null;
  return json === true ? [] : json.split(',');
}

export const isJson = (command: Command): boolean => jsonFields(command) !== null;

const pick = (record: Row, fields: readonly string[]): Row =>
  fields.length === 0 ? record : Object.fromEntries(fields.map((field) => [field, record[field]]));

/**
 * Prints the named fields of records. With an unknown name it prints all fields first, because a secret is
 * shown only once.
 * @throws CommandError
 */
function printFields(
  records: readonly Row[],
  fields: readonly string[],
  print: (records: readonly Row[]) => void,
): void {
  const unknown = fields.filter((field) => records.some((record) => !(field in record)));
  print(unknown.length > 0 ? records : records.map((record) => pick(record, fields)));
  if (unknown.length > 0)
    throw new CommandError(
      'failed',
      `Unknown field ${unknown.join(', ')}; all fields are printed. The command has been carried out.`,
    );
}

const write = (lines: readonly string[]) => {
  process.stdout.write(lines.map((line) => `${line}\n`).join(''));
};

/** Prints a document, indented on a terminal. */
export const writeJson = (value: unknown): void =>
  write([printableJson(value, process.stdout.isTTY ? 2 : 0)]);

/** Colour is for terminals, and for nobody who set NO_COLOR (no-color.org). */
const emphasize = (text: string) =>
  process.stdout.isTTY && !process.env.NO_COLOR ? styleText('bold', text) : text;

function show(value: unknown): string {
  if (value === null || value === undefined) return '';
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value);
  return printableLine(text);
}

const BYTES = /_bytes$/;
const TIMESTAMP = /_(?:at|until)$/;

/** On a terminal, sizes and times as people read them. Programs get them exactly. */
function showField(field: string, value: unknown): string {
  if (!process.stdout.isTTY) return show(value);
  if (typeof value === 'number' && BYTES.test(field)) return bytes(value);
  if (typeof value === 'string' && TIMESTAMP.test(field)) return relative(value, Date.now());
  return show(value);
}

const titleOf = (column: string) => column.replace(BYTES, '').toUpperCase().replaceAll('_', ' ');

/**
 * Prints records: a table on a terminal, tab-separated values elsewhere, with `--json` the records
 * themselves.
 */
export function printRecords(
  command: Command,
  records: readonly Row[],
  columns: readonly string[],
  titles: readonly string[] = columns.map(titleOf),
): void {
  const fields = jsonFields(command);
  if (fields !== null) {
    printFields(records, fields, writeJson);
    return;
  }
  const rows = records.map((record) => columns.map((column) => showField(column, record[column])));
  if (!process.stdout.isTTY) {
    write(rows.map((row) => row.join('\t')));
    return;
  }
  const head = titles.map(show);
  const widths = columns.map((_, n) => Math.max(...[head, ...rows].map((row) => row[n]?.length ?? 0)));
  const line = (row: readonly string[]) =>
    row
      .map((cell, n) => cell.padEnd(widths[n] ?? 0))
      .join('  ')
      .trimEnd();
  write([emphasize(line(head)), ...rows.map(line)]);
}

/** For people: the fields of an object within the record as `outer.inner`. */
const flatten = (record: Row): Row =>
  Object.fromEntries(
    Object.entries(record).flatMap(([name, value]) =>
      typeof value === 'object' && value !== null && !Array.isArray(value)
        ? Object.entries(value).map(([inner, found]) => [`${name}.${inner}`, found])
        : [[name, value]],
    ),
  );

/** Prints the record of a command that otherwise prints nothing, where a program reads it. */
export function printForPrograms(command: Command, record: Row): void {
  if (isJson(command)) printRecord(command, record);
}

/** Prints one record: `field: value` lines, with `--json` the record itself. */
export function printRecord(command: Command, record: Row, columns?: readonly string[]): void {
  const fields = jsonFields(command);
  if (fields !== null) {
    printFields([record], fields, ([printed]) => writeJson(printed));
    return;
  }
  const shown = columns ? record : flatten(record);
  const names = (columns ?? Object.keys(shown)).filter((name) => name in shown);
  const width = Math.max(0, ...names.map(({ length }) => length));
  const separate = (name: string) =>
    process.stdout.isTTY ? `${emphasize(name.padEnd(width))}  ` : `${name}	`;
  write(names.map((name) => `${separate(name)}${showField(name, shown[name])}`));
}

interface Section {
  title: string;
  records: readonly Row[];
  columns: readonly string[];
}

/** Prints a record that has lists: its fields, then each list as a table. With `--json` the record itself. */
export function printSections(
  command: Command,
  record: Row,
  columns: readonly string[],
  sections: readonly Section[],
): void {
  printRecord(command, record, columns);
  if (isJson(command)) return;
  for (const { title, records, columns: shown } of sections.filter((section) => section.records.length > 0)) {
    write(['', emphasize(title)]);
    printRecords(command, records, shown);
  }
}

/** Prints a text for people, whose names come from a database. */
export const printLines = (lines: readonly string[]): void => write(lines.map(show));

/** Prints one line of a stream: as JSON with `--json`, otherwise as tab-separated columns. */
export function printLine(command: Command, record: Row, columns: readonly string[]): void {
  const fields = jsonFields(command);
  if (fields === null) write([columns.map((column) => show(record[column])).join('\t')]);
  else printFields([record], fields, ([printed]) => write([printableJson(printed)]));
}
