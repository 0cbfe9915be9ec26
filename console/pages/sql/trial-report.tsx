import type { Schemas } from '../../../client/client.ts';
import { milliseconds } from '../../../shared/format.ts';
import { Note } from '../../components/feedback.tsx';
import { ListTable } from '../../components/list-table.tsx';

type Trial = Schemas['Trial'];

const VERDICTS = {
  safe: ['good', 'No danger was found'],
  danger: ['warn', 'A danger was found'],
  failed: ['bad', 'A statement failed'],
} as const satisfies Record<Trial['verdict'], readonly [string, string]>;

const DANGERS = {
  lock: 'a long lock that excludes readers',
  rewrite: 'the table is rewritten',
  rows_lost: 'rows are lost',
} as const satisfies Record<Trial['dangers'][number]['kind'], string>;

/** What became of each table: rows, locks, its file. */
function tableLines({ rows, tables, dangers }: Trial): [string, string][] {
  const lines = new Map<string, string[]>();
  const add = ({ schema, name }: { schema: string; name: string }, text: string) => {
    const key = `${schema}.${name}`;
    lines.set(key, [...(lines.get(key) ?? []), text]);
  };
  for (const table of rows?.tables ?? [])
    add(table, `${table.inserted} inserted, ${table.updated} updated, ${table.deleted} deleted`);
  for (const table of rows?.not_compared ?? []) add(table, 'its rows were not compared');
  for (const table of tables) {
    for (const { mode, longest_ms } of table.locks) add(table, `${mode} for ${milliseconds(longest_ms)}`);
    if (table.rewritten) add(table, 'rewritten');
    if (table.dropped) add(table, 'dropped');
  }
  for (const danger of dangers) add(danger, `danger: ${DANGERS[danger.kind]}`);
  return [...lines].map(([name, texts]) => [name, texts.join('; ')]);
}

/** The report of statements that were tried on a copy, without their results. */
export function TrialReport({ trial }: { trial: Trial }) {
  const [tone, verdict] = VERDICTS[trial.verdict];
  const lines = [
    ...tableLines(trial),
    ...(trial.schema?.changes ?? []).map(({ identity, kind, change }): [string, string] => [
      identity,
      `${kind.replaceAll('_', ' ')} ${change}`,
    ]),
  ];
  return (
    <section className="card" aria-label="Trial">
      <header>
        <h2>Tried on a copy</h2>
        <span className={`badge ${tone}`}>{verdict}</span>
      </header>
      {trial.error && (
        <Note tone="bad">
          {trial.error.statement === null ? '' : `Statement ${trial.error.statement}: `}
          {trial.error.message}
        </Note>
      )}
      {lines.length > 0 && (
        <ListTable columns={['Object', 'What the statements did']} hasActions={false}>
          {lines.map(([name, text]) => (
            <tr key={`${name} ${text}`}>
              <td className="mono">{name}</td>
              <td>{text}</td>
            </tr>
          ))}
        </ListTable>
      )}
      <p className="body small quiet">
        As {trial.role.replaceAll('_', '-')}, {milliseconds(trial.statements_ms)}. Nothing was changed, and
        nothing is left.{trial.has_more && ' There is more than fits into a report.'}{' '}
        {trial.problems.join(' ')}
      </p>
    </section>
  );
}
