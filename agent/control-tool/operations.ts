import { Command, Option } from 'commander';
import { z } from 'zod';
import { ROWS_MAX } from '../../shared/limits.ts';
import { type Method, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { runOperation } from '../operations/handlers.ts';
import { print, progressLine, readValue, type ValueKind } from './terminal.ts';
import { withHost } from './with-host.ts';

type Parameter = { [M in Method]: keyof Params<M> }[Method];

const PARAMETER_HELP: Record<Parameter, string> = {
  job_id: 'id of the job; repeat a failed command with the same id to finish it',
  project_id: 'id of the project',
  branch_id: 'id of the branch',
  snapshot_id: 'id of the snapshot',
  unless_same_as: 'take none if the source has not changed since this snapshot of it (default: take one)',
  branches:
    'branches of the job: [{"branch_id": …, "database": "db_…", "build_id": …}], with the verifiers or the password of each; the clone is built under build_id',
  made_by: 'drop only what this job has made (default: whatever there is)',
  database: 'database name of the branch, db_…',
  source: 'database to clone, or a snapshot: bgsnap_… (default: creates an empty one)',
  busy_wait: 'milliseconds to wait until sessions of the source have ended their transactions',
  access: '{"revision": 1, "rules": [{"branch_id": null, "cidr": "192.0.2.0/24"}]}',
  schema: 'schema of the table; for branch diff: compare schemas, true or false',
  table: 'name of the table',
  after:
    'list tables after this one: {"schema": "public", "name": "author"}; for row diff: `next` of the page before (default: from the first)',
  limit: `maximum number of rows, up to ${ROWS_MAX}`,
  offset: 'number of rows to skip',
  filter: 'conditions: [{"column": "title", "operator": "contains", "value": "e"}] (default: none)',
  order: 'order of the rows: [{"column": "title", "direction": "desc"}] (default: by the primary key)',
  primary_key: 'columns of the key: ["id"]',
  id: 'values of the key columns: [7]',
  ids: 'values of the key columns of each row to delete: [[7], [8]]',
  column: 'name of the column to change',
  value: 'new value (default: null)',
  against: 'what to compare with: {"branch_id": …, "database": "db_…"} or {"snapshot_id": …}',
  rows: 'compare rows: true or false',
  within: 'milliseconds after which the comparison is abandoned',
  limits: 'of a dangerous lock: {"lock_ms": 1000, "table_bytes": 104857600}',
  changes: 'changes: [{"action": "insert", "schema": "public", "table": "book", "values": […]}]',
  role: 'read_only or read_write: the login that runs the statement; of a member: primary, standby or fenced',
  sql: 'one statement, with parameters $1, $2, …',
  params: 'values of the parameters (default: none)',
  try_id: 'id of the trial; a repeated command with it gets the same report while the agent runs',
  wait: 'milliseconds to wait for the report',
  revision: 'revision of the access by which the client was admitted',
  address: 'address of the client',
  password: 'of the login (default: the query login runs the statements, and they are undone)',
  application_name: 'as the session shows it',
  statements: 'statements: [{"text": "select $1", "params": [1]}]',
  transaction:
    'around the statements: {"isolation": "SERIALIZABLE", "read_only": true, "deferrable": false} (default: none, for one statement)',
  raw_text: "cells as PostgreSQL's text: true or false",
  row_arrays: 'rows as arrays: true or false',
  reply_id: 'id of the reply of which a part is read',
  rules: 'rules of the masking policy: [{"table": "customer", "column": "email", "with": "email"}]',
  unlisted: 'what becomes of columns without a rule: keep or refuse_likely_personal',
  masking:
    'the policy: {"rules": […], "unlisted": "keep", "key": 32 bytes as base64} (default: remove the rows of all tables)',
  key: 'key of the masking: 32 bytes as base64',
  apply_changes: 'also apply changes of the schema that are more than additions: true or false',
  keep_tables: 'tables whose rows stay if the others are removed: ["public.country"] (default: none)',
  sample: 'also look at samples of the values: true or false',
  up_to_revision:
    'revision of the newest access that is known: a project with a newer one stays (default: any)',
  generation: 'of the record; an older one than the host has is ignored',
  closing: 'whether the standby is about to take the place of this host: true or false',
  bisection_id: 'id of the bisection, whose probe is recovered',
  good: 'a time when it was right: 2026-11-23T10:15:00.000000Z',
  bad: 'a time when it was wrong',
  verdict: 'of the last probe: good or bad (default: the same probe again)',
  standby_id: 'id of the standby (default: none)',
  db_host: 'public name or address of the standby',
  verifier: 'SCRAM-SHA-256 verifier of its password',
  expected: 'required present value: {"value": "old"} (default: any)',
};

const GROUP_HELP: Record<string, string> = {
  host: 'Describe this host and its contents',
  branch: 'Create branches, step by step; drop one; compare branches',
  project: 'Size and drop a project',
  snapshot: 'Take, mask and drop a snapshot of a branch',
  masking: 'Compare a masking policy with a branch',
  reset: 'Replace the database of a branch by a clone, step by step',
  past: 'Recover a branch as it was at some time',
  bisect: 'Look for the commit after which something is wrong, step by step',
  follow: 'Make a branch follow a database elsewhere, step by step',
  access: 'Apply network rules, closures and write blocks',
  rehearsal: 'Watch what a migration does to a branch',
  try: 'Run statements on a copy of a branch, and report what they did',
  member: 'Make this host the primary, close or fence it; host and standby',
  standby: 'Admit a standby of this host',
  table: 'List the tables of a branch',
  row: 'Read and change rows of a branch as its read-write login',
  sql: 'Run statements of a client of SQL over HTTP',
};

/** A parameter of an operation as a command-line flag. */
interface Flag {
  parameter: Parameter;
  kind: ValueKind;
  /** The value without the flag: null, an empty list, or undefined for none. */
  omitted: null | readonly [] | undefined;
  isRequired: boolean;
}

const VALUE_NAMES: Record<ValueKind, string> = { text: '<text>', number: '<number>', json: '<json>' };

const VALUE_HELP = '`@file` reads a value from a file, `-` from standard input. Use either for passwords.';

/**
 * One command per operation of the protocol, one flag per parameter: `branch.clone` becomes `branch clone`.
 */
export function operationCommands(): Command[] {
  const groups = new Map<string, Command>();
  for (const method of Object.keys(OPERATIONS) as Method[]) {
    const [noun = '', verb = ''] = method.split('.');
    const group = groups.get(noun) ?? new Command(noun).description(GROUP_HELP[noun] ?? noun);
    groups.set(noun, group.addCommand(operationCommand(method, verb)));
  }
  return [...groups.values()];
}

function operationCommand(method: Method, verb: string): Command {
  const { summary, params } = OPERATIONS[method];
  const flags = flagsOf(params);
  const command = new Command(verb).description(summary);
  if (flags.length > 0) command.addHelpText('after', `\n${VALUE_HELP}`);
  for (const { parameter, kind, isRequired } of flags) {
    const flag = new Option(
      `--${parameter.replaceAll('_', '-')} ${VALUE_NAMES[kind]}`,
      PARAMETER_HELP[parameter],
    );
    command.addOption(flag.makeOptionMandatory(isRequired));
  }
  return command.action(async (options: Record<string, string>) => {
    const given: Record<string, unknown> = {};
    for (const { parameter, kind, omitted } of flags) {
      const value = options[camelCase(parameter)];
      const known = value === undefined ? omitted : await readValue(kind, parameter, value);
      if (known !== undefined) given[parameter] = known;
    }
    const progress = progressLine();
    const result = await withHost((host) => runOperation(host, method, given, progress.update)).finally(
      progress.clear,
    );
    print(command, result);
  });
}

const camelCase = (name: string) => name.replaceAll(/_(.)/g, (_, letter: string) => letter.toUpperCase());

interface Shape {
  type?: string | string[];
  anyOf?: Shape[];
  minItems?: number;
  properties?: Record<string, Shape>;
  required?: string[];
}

const KINDS: Record<string, ValueKind> = { string: 'text', integer: 'number', number: 'number' };

/** Derives the flags from the schema, so that the control tool always matches the protocol. */
function flagsOf(params: z.ZodType): Flag[] {
  const { properties = {}, required = [] } = z.toJSONSchema(params, { io: 'input' }) as Shape;
  return Object.entries(properties).map(([parameter, shape]) => {
    const types = (shape.anyOf ?? [shape]).flatMap(({ type = [] }) => type);
    const type = types.find((name) => name !== 'null') ?? '';
    const isListOfAny = type === 'array' && shape.minItems === undefined;
    const omitted = types.includes('null') ? null : isListOfAny ? ([] as const) : undefined;
    const isRequired = omitted === undefined && required.includes(parameter);
    return { parameter, kind: KINDS[type] ?? 'json', omitted, isRequired };
  });
}
