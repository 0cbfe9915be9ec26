import { Command, Option } from 'commander';
import { z } from 'zod';
import { type Method, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { runOperation } from '../operations/handlers.ts';
import { print, progressLine } from './output.ts';
import { readValue, type ValueKind } from './read-value.ts';
import { withHost } from './with-host.ts';

type Parameter = { [M in Method]: keyof Params<M> }[Method];

const PARAMETER_HELP: Record<Parameter, string> = {
  job_id: 'job this is part of; the same id again finishes what it began',
  project_id: 'project of the branch',
  branch_id: 'id of the branch',
  database: "the branch's database name, db_…",
  source: 'database to clone; an empty one when left out',
  busy_wait: 'milliseconds to wait for sessions of the source that are in a transaction',
  verifiers: 'SCRAM-SHA-256 verifiers: {"owner": …, "read_write": …, "read_only": …}',
  access: '{"revision": 1, "rules": [{"branch_id": null, "cidr": "192.0.2.0/24"}]}',
  password: "the read-write login's password",
  schema: "the table's schema",
  table: "the table's name",
  after: 'go on after this table: {"schema": "public", "name": "author"}; from the first when left out',
  limit: 'how many rows, 50 at most',
  offset: 'how many rows to pass over',
  primary_key: 'columns of the key: ["id"]',
  id: 'value of each of these columns in the row: [7]',
  ids: 'the same of each row to delete: [[7], [8]]',
  column: 'column of the cell',
  value: 'what to write; null when left out',
  expected: 'what the cell must hold now: {"value": "old"}; anything when left out',
};

const GROUP_HELP: Record<string, string> = {
  host: 'What this host is and holds',
  branch: 'Make and drop a branch, step by step',
  project: 'Drop a project',
  access: 'Network rules',
  table: 'Tables of a branch',
  row: "Rows of a branch's table, read and changed as its read-write login",
};

/** A parameter of an operation as its flag. */
interface Flag {
  parameter: Parameter;
  kind: ValueKind;
  /** Left out means null. */
  nullable: boolean;
}

const VALUE_NAMES: Record<ValueKind, string> = { text: '<text>', number: '<number>', json: '<json>' };

const VALUE_HELP = 'A value `@file` is read from that file, `-` from standard input: use it for passwords.';

/** One command an operation of the protocol: `branch.clone` becomes `branch clone`, a flag each parameter. */
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
  for (const { parameter, kind, nullable } of flags) {
    const flag = new Option(
      `--${parameter.replaceAll('_', '-')} ${VALUE_NAMES[kind]}`,
      PARAMETER_HELP[parameter],
    );
    command.addOption(flag.makeOptionMandatory(!nullable));
  }
  return command.action(async (options: Record<string, string>) => {
    const given: Record<string, unknown> = {};
    for (const { parameter, kind } of flags) {
      given[parameter] = await readValue(kind, parameter, options[camelCase(parameter)]);
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
  properties?: Record<string, Shape>;
}

const KINDS: Record<string, ValueKind> = { string: 'text', integer: 'number', number: 'number' };

/** The flags follow from the schema, so that the control tool never lags behind the protocol. */
function flagsOf(params: z.ZodType): Flag[] {
  const { properties = {} } = z.toJSONSchema(params, { io: 'input' }) as Shape;
  return Object.entries(properties).map(([parameter, shape]) => {
    const types = (shape.anyOf ?? [shape]).flatMap(({ type = [] }) => type);
    const type = types.find((name) => name !== 'null') ?? '';
    return { parameter, kind: KINDS[type] ?? 'json', nullable: types.includes('null') };
  });
}
