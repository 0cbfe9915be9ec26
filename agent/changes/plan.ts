import {
  CHANGE_SQL_MAX,
  CHANGE_STEPS_MAX,
  type ChangeStep,
} from '../../shared/protocol/change-operations.ts';
import { HostError } from '../process/host-error.ts';
import { splitStatements, tokensOf } from '../rows/split-statements.ts';
import { findingsOf } from './lint.ts';

/**
 * A statement as words and signs in lower case, separated by spaces, with a space at both ends. A quoted name is one
 * word with its quotes, and a text is `''`.
 */
export function wordsOf(sql: string): string {
  const words = [...tokensOf(sql)].map(({ text, kind }) => {
    if (text.startsWith('"')) return text.replaceAll(/\s/g, '_');
    return kind === 'quoted' ? "''" : text.toLowerCase();
  });
  return ` ${words.join(' ')} `;
}

const REPEATED = 'Nothing is left of the interrupted statement. The statements before it are applied.';
const INVALID_INDEX =
  'An invalid index can be left, which is dropped before the next attempt. The statements before it are applied.';

/** Statements that PostgreSQL refuses in a transaction, with what an interruption in the middle leaves. */
const ALONE: readonly { form: RegExp; leaves: string }[] = [
  { form: /^ create (?:unique )?index concurrently /, leaves: INVALID_INDEX },
  {
    form: /^ drop index concurrently /,
    leaves: 'The index can be left invalid, and is dropped then. The statements before it are applied.',
  },
  { form: /^ reindex /, leaves: INVALID_INDEX },
  {
    form: /^ alter table .* detach partition .* concurrently $/,
    leaves:
      'The partition can be left with its detachment pending, which ALTER TABLE … DETACH PARTITION … FINALIZE completes. The statements before it are applied.',
  },
  { form: /^ (?:vacuum|cluster) /, leaves: REPEATED },
  {
    form: /^ call /,
    leaves:
      'What the procedure has committed stays, and the procedure runs again. The statements before it are applied.',
  },
];

/** Statements that would undo the bounds of a step, or choose who runs it. */
const REFUSED: readonly { form: RegExp; message: string }[] = [
  {
    form: /^ (?:set|reset) (?:local |session )?(?:role|session authorization) /,
    message: 'A change runs as the owner of the project. Remove this statement.',
  },
  {
    form: /^ (?:rollback|abort|prepare transaction) /,
    message: 'A change only goes forward. Remove this statement, or leave out what it undoes.',
  },
  { form: /^ (?:copy .* from stdin|listen|discard) /, message: 'A change cannot contain this statement.' },
];
const LIMITS =
  /^ set (?:local |session )?(?:lock|statement|transaction|idle_in_transaction_session)_?timeout /;

const refused = (at: number, message: string) =>
  new HostError('INVALID_CALL', `statement ${at + 1}: ${message}`, { path: 'sql' });

/**
 * Divides a text into the steps of a change: a statement, or the statements between `begin` and `commit`.
 * @throws HostError INVALID_CALL
 */
export function stepsOf(sql: string): ChangeStep[] {
  const steps: ChangeStep[] = [];
  let group: ChangeStep['statements'] | null = null;
  const add = (statements: ChangeStep['statements'], more: Partial<ChangeStep> = {}) =>
    steps.push({ statements, alone: false, sets: false, leaves: REPEATED, ...more });
  for (const [at, { text }] of splitStatements(sql).entries()) {
    const words = wordsOf(text);
    const refusal = REFUSED.find(({ form }) => form.test(words));
    if (refusal) throw refused(at, refusal.message);
    if (/^ (?:begin|start transaction) /.test(words)) {
      if (group) throw refused(at, 'The transaction before has no COMMIT.');
      group = [];
    } else if (/^ (?:commit|end) /.test(words)) {
      if (!group) throw refused(at, 'There is no BEGIN before it.');
      if (group.length > 0) add(group);
      group = null;
    } else if (group) {
      if (LIMITS.test(words))
        throw refused(at, 'The limits of time are those of the change. Remove this statement.');
      if (ALONE.some(({ form }) => form.test(words)))
        throw refused(at, 'PostgreSQL refuses it in a transaction. Move it out of BEGIN and COMMIT.');
      group.push({ sql: text, findings: findingsOf(words) });
    } else {
      const alone = ALONE.find(({ form }) => form.test(words));
      const sets = /^ (?:set|reset) (?!constraints |transaction |local )/.test(words);
      add([{ sql: text, findings: findingsOf(words) }], {
        sets,
        ...(alone && { alone: true, leaves: alone.leaves }),
      });
    }
  }
  if (group) throw new HostError('INVALID_CALL', 'The last transaction has no COMMIT.', { path: 'sql' });
  if (steps.length === 0) throw new HostError('INVALID_CALL', 'There is no statement.', { path: 'sql' });
  return steps;
}

/** @throws HostError INVALID_CALL for more statements than a plan has, or a longer text */
export function requireRoom(steps: readonly ChangeStep[]): void {
  const statements = steps.flatMap((step) => step.statements);
  if (statements.length > CHANGE_STEPS_MAX)
    throw new HostError('INVALID_CALL', `A change has at most ${CHANGE_STEPS_MAX} statements.`, {
      path: 'sql',
    });
  if (statements.reduce((sum, { sql }) => sum + sql.length, 0) > CHANGE_SQL_MAX)
    throw new HostError(
      'INVALID_CALL',
      `A change has at most ${CHANGE_SQL_MAX} characters, with the rows of the table of a migration tool. Send the statements as sql, without from.`,
      { path: 'sql' },
    );
}
