import type { MigrationReport as Report } from '../client/rehearsal.ts';
import { bytes as size } from '../shared/format.ts';

type Table = Report['tables'][number];

const DANGERS: Record<Report['dangers'][number]['kind'], string> = {
  lock: 'a long ACCESS EXCLUSIVE lock: nobody could have read the table meanwhile',
  rewrite: 'the table was rewritten, under an ACCESS EXCLUSIVE lock',
  rows_lost: 'the table has fewer rows than before',
};

/** `AccessExclusiveLock` → `ACCESS EXCLUSIVE` */
const modeOf = (mode: string) =>
  mode
    .replace(/Lock$/, '')
    .replaceAll(/(?<=[a-z])[A-Z]/g, ' $&')
    .toUpperCase();

const countOf = (rows: Table['rows_before']) =>
  rows === null ? 'an unknown number' : `${rows.exact ? '' : 'about '}${rows.count}`;

/** What was done to a table besides its rows. */
export const factsOf = ({ locks, rewritten, dropped }: Pick<Table, 'locks' | 'rewritten' | 'dropped'>) => [
  ...locks.map(({ mode, longest_ms }) => `${modeOf(mode)} for ${longest_ms} ms`),
  ...(rewritten ? ['rewritten'] : []),
  ...(dropped ? ['dropped'] : []),
];

function tableLine({
  schema,
  name,
  bytes,
  locks,
  rewritten,
  dropped,
  rows_before,
  rows_after,
}: Table): string {
  const facts = [
    ...factsOf({ locks, rewritten, dropped }),
    ...(rows_before?.count === rows_after?.count
      ? []
      : [`rows: ${countOf(rows_before)}, then ${countOf(rows_after)}`]),
  ];
  return `  ${schema}.${name} (${size(bytes)}): ${facts.join('; ')}`;
}

export const section = (title: string, lines: string[]) => (lines.length === 0 ? [] : [title, ...lines]);

export const dangerLines = (dangers: Report['dangers']) =>
  dangers.map((danger) => `  ${danger.schema}.${danger.name}: ${DANGERS[danger.kind]}`);

export const changeLines = (changes: Report['schema']['changes']) =>
  changes.map(
    ({ change, kind, identity, detail }) =>
      `  ${change} ${kind} ${identity}${detail === undefined ? '' : ` (${detail})`}`,
  );

/** A gap in which a lock of the limit's length would not have been seen. */
const GAP_MS = 500;

/** The report for a person. */
export function rehearsalText(report: Report): string[] {
  const { verdict, dangers, tables, schema, wal, samples, longest_gap_ms, unwatched_tables } = report;
  return [
    `Verdict: ${verdict}`,
    ...(verdict === 'failed' ? ['  The migration ended with an error: this is what it did until then.'] : []),
    ...dangerLines(dangers),
    ...section('Tables:', tables.map(tableLine)),
    ...section('Schema:', changeLines(schema.changes)),
    ...section(
      'Not compared:',
      schema.not_modelled.map((text) => `  ${text}`),
    ),
    `Write-ahead log: ${wal.exact ? size(wal.bytes) : `at most ${size(wal.bytes)}, which is what the whole host wrote`}`,
    `Locks were sampled ${samples} times.`,
    ...(longest_gap_ms > GAP_MS ? [`For ${longest_gap_ms} ms no locks were sampled.`] : []),
    ...(unwatched_tables > 0 ? [`${unwatched_tables} smaller tables were not watched.`] : []),
  ];
}
