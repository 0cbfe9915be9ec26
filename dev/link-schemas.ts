import { z } from 'zod';
import { NOTIFICATIONS } from '../shared/protocol/notifications.ts';
import { OPERATIONS } from '../shared/protocol/operations.ts';
import { PROTOCOL_VERSION } from '../shared/protocol/version.ts';

/** Prints the schemas of the link, one operation per line; a release keeps them (CONTRIBUTING.md). */

const json = (schema: z.ZodType) => {
  const { $schema: _, ...rest } = z.toJSONSchema(schema, { io: 'input' });
  return rest;
};

const lines = (entries: [string, unknown][]) =>
  entries.map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`).join(',\n');

const operations = Object.entries(OPERATIONS).map(([method, { params, result }]): [string, unknown] => [
  method,
  { params: json(params), result: json(result) },
]);
const notifications = Object.entries(NOTIFICATIONS).map(([method, { params }]): [string, unknown] => [
  method,
  { params: json(params) },
]);

process.stdout.write(
  `{"version": ${PROTOCOL_VERSION},\n"operations": {\n${lines(operations)}},\n"notifications": {\n${lines(notifications)}}}\n`,
);
