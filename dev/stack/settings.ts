import { existsSync, realpathSync } from 'node:fs';
import { resolve } from 'node:path';
import { z } from 'zod';
import { readSettings as readAgentSettings } from '../../agent/process/settings.ts';
import { readSettings as readGatewaySettings } from '../../edge/settings.ts';
import { PLACEHOLDERS } from '../../operator/settings.ts';
import { faultsOf } from '../../shared/setting-range.ts';

/** Why the stack cannot start or continue, and what to do, in one line for the user. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
}

const Port = z.coerce.number().int().min(1).max(65_535).optional();

const Settings = z.object({
  /** The local stack's files. */
  DEV_DIR: z
    .string()
    .default('.dev')
    // A canonical path, because it identifies the stack's processes.
    .transform((dir) => (existsSync(dir) ? realpathSync(dir) : resolve(dir))),
  /** Ports on 127.0.0.1. By default a standard port, or a free one if that is taken; stored in DEV_DIR. */
  GATEWAY_PORT: Port,
  IDP_PORT: Port,
  /** PostgreSQL (specification 2.5: direct). */
  DIRECT_PORT: Port,
  /** PgBouncer (specification 2.5: pooled). */
  POOLED_PORT: Port,
  /** SQL over WebSocket. */
  SQL_PORT: Port,
  /** PostgreSQL's data folder, if it is on another disk than DEV_DIR. */
  PGDATA_DIR: z
    .string()
    .transform((dir) => resolve(dir))
    .optional(),
  /** Database hosts. Those of an earlier start that are not asked for stay as they are, and are not started. */
  HOSTS: z.coerce.number().int().min(1).max(4).default(1),
  /** Whether the first host has a standby. */
  STANDBY: z.enum(['0', '1']).default('0'),
});

export type Environment = Record<string, string>;

export type StackSettings = z.output<typeof Settings> & {
  /** All variables with a value; settings of gateway and agent are passed on under their own names. */
  environment: Environment;
};

const refusal = (faults: string) =>
  new Refusal(`${faults}. Correct them in the environment of \`npm start\`; docs/operating.md lists all.`);

/** What the stack itself sets, so that nothing else is missing. */
const GIVEN = { BASE_URL: 'http://127.0.0.1:1', GATEWAY_URL: 'http://127.0.0.1:1', ...PLACEHOLDERS };

/** Before anything has started. Gateway and agent would refuse to. @throws Refusal */
function checkPassedOn(environment: Environment): void {
  const passed = Object.fromEntries(
    Object.entries(environment).filter(([name]) => !(name in Settings.shape)),
  );
  for (const read of [readGatewaySettings, readAgentSettings])
    try {
      read({ ...passed, ...GIVEN });
    } catch (error) {
      throw refusal((error as Error).message);
    }
}

/**
 * @param env variables by name; an empty one counts as missing
 * @throws Refusal that names each invalid variable, never its value
 */
export function readSettings(env: Record<string, string | undefined>): StackSettings {
  const environment: Environment = {};
  for (const [name, value] of Object.entries(env)) if (value) environment[name] = value;
  const reading = Settings.safeParse(environment);
  if (!reading.success) throw refusal(faultsOf(Settings.shape, reading.error));
  checkPassedOn(environment);
  return { ...reading.data, environment };
}
