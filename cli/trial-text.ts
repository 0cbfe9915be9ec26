import type { Schemas } from '../client/client.ts';
import { milliseconds, bytes as size } from '../shared/format.ts';
import { changeLines, dangerLines, factsOf, section } from './rehearsal-text.ts';

type Trial = Schemas['Trial'];

const sourceText = ({ kind, name, id, data }: Trial['source']) =>
  kind === 'branch' ? String(name) : `snapshot ${name ?? id}, whose data is ${data}`;

/** The report for a person, without the results of the statements. */
export function trialText(report: Trial): string[] {
  const { verdict, dangers, tables, rows, schema, problems, error } = report;
  return [
    `Verdict: ${verdict}`,
    ...(error?.statement == null ? [] : [`  This is statement ${error.statement}.`]),
    ...dangerLines(dangers),
    ...section(
      'Rows:',
      (rows?.tables ?? []).map(
        ({ schema, name, inserted, updated, deleted }) =>
          `  ${schema}.${name}: ${inserted} inserted, ${updated} updated, ${deleted} deleted`,
      ),
    ),
    ...section(
      'Rows not compared:',
      (rows?.not_compared ?? []).map(({ schema, name, reason }) => `  ${schema}.${name} (${reason})`),
    ),
    ...section('Schema:', changeLines(schema?.changes ?? [])),
    ...section(
      'Tables:',
      tables.map(
        (table) => `  ${table.schema}.${table.name} (${size(table.bytes)}): ${factsOf(table).join('; ')}`,
      ),
    ),
    ...problems,
    ...(report.has_more ? ['There is more than fits into a report.'] : []),
    `The statements took ${milliseconds(report.statements_ms)} on a copy of ${sourceText(report.source)}. Nothing was changed.`,
  ];
}
