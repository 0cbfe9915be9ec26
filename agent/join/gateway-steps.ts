import { z } from 'zod';
import { gatewayAddress } from '../link/gateway-address.ts';
import { readIdentity } from '../link/identity.ts';
import { pollUntil } from '../process/loops.ts';
import { isRunning, readRunRecord } from '../upgrade/trial.ts';
import { type Context, SETTINGS_FILE } from './context.ts';
import { type Kind, lastLine, type Ran, type RunOptions, StepFailure } from './machine.ts';
import { disable, enable, isActive, isInRecovery, reloadUnits, restartOutdated } from './services.ts';
import { AGENT_FILES, AGENT_UNIT, type Step } from './step.ts';

const RESPONSE_WITHIN_MS = 15_000;
const LINK_WITHIN_MS = 60_000;
/** Far more than a slow network, and less than what certificates and tokens allow. */
const CLOCK_WITHIN_MS = 300_000;

const KINDS: Partial<Record<number, Kind>> = { 2: 'usage', 3: 'refused', 4: 'unreachable' };

/** Runs a command of the control tool as the agent's user. */
export const runTool = (
  { machine, program, servers, environment }: Context,
  words: string[],
  options: Pick<RunOptions, 'input' | 'within'> = {},
): Promise<Ran> =>
  machine.query(program[0], [program[1], ...words], { ...options, user: servers.user, env: environment });

/** A gateway that cannot be reached, or a clock that is off, fails here, before anything has changed. */
async function checkGateway({ machine, settings: { GATEWAY_URL } }: Context): Promise<void> {
  if (!GATEWAY_URL)
    throw new StepFailure(
      'usage',
      'the address of the gateway is missing: give the whole line that `branchgate host add` printed',
    );
  const { origin, hostname } = addressOf(GATEWAY_URL);
  const response = await fetch(new URL('/healthz', origin), {
    redirect: 'error',
    signal: AbortSignal.timeout(RESPONSE_WITHIN_MS),
  }).catch((error: Error) => {
    throw new StepFailure(
      'unreachable',
      `the gateway at ${origin} is unreachable ${reasonOf(error, hostname)}`,
    );
  });
  await response.body?.cancel();
  const gatewayTime = Date.parse(response.headers.get('date') ?? '');
  const offMs = Date.now() - gatewayTime;
  if (Math.abs(offMs) > CLOCK_WITHIN_MS)
    throw new StepFailure(
      'refused',
      `the clock of this machine is ${Math.round(Math.abs(offMs) / 60_000)} minutes ${offMs > 0 ? 'fast' : 'slow'}, so the gateway would refuse its signatures: timedatectl set-ntp true`,
    );
  machine.note(`${origin} responds`);
}

function addressOf(url: string): URL {
  try {
    gatewayAddress(url);
    return new URL(url);
  } catch (error) {
    throw new StepFailure('usage', (error as Error).message);
  }
}

/** Codes of Node's network errors, with what to do. */
const REASONS: Record<string, (hostname: string) => string> = {
  ENOTFOUND: (hostname) => `because ${hostname} has no DNS record: check the address`,
  EAI_AGAIN: (hostname) => `because no name server responds about ${hostname}: check /etc/resolv.conf`,
  ECONNREFUSED: () => 'because it refuses the connection: check the address and its port',
  CERT_HAS_EXPIRED: () => 'because its certificate has ended: check the clock of this machine',
  CERT_NOT_YET_VALID: () => 'because its certificate is not valid yet: check the clock of this machine',
};

function reasonOf(error: Error & { cause?: unknown }, hostname: string): string {
  const { code = '', message = error.message } = (error.cause ?? {}) as { code?: string; message?: string };
  return REASONS[code]?.(hostname) ?? `(${message}): check the address and the firewalls in between`;
}

async function enrol(context: Context): Promise<void> {
  const { machine, settings, servers, options } = context;
  await machine.makeFolder(settings.STATE_DIR, { mode: 0o750, owner: servers.user });
  const identity = await readIdentity(machine.at(settings.STATE_DIR)).catch((error: Error) => {
    throw new StepFailure('refused', error.message);
  });
  if (identity) {
    machine.note(`enrolled as ${identity.host_id}${options.token ? ', so the token was not used' : ''}`);
    return;
  }
  if (!options.token)
    throw new StepFailure(
      'usage',
      'the enrolment token is missing: give the whole line that `branchgate host add` printed',
    );
  await machine.change(`enrolled this host${options.host ? ` as ${options.host}` : ''}`, async () => {
    // On standard input, because every user of the machine can read the arguments of a process.
    const words = ['enrol', '--gateway', settings.GATEWAY_URL ?? '', '--token', '-'];
    const ran = await runTool(context, words, { input: options.token });
    if (ran.code !== 0)
      throw new StepFailure(KINDS[ran.code] ?? 'failed', lastLine(ran).replace(/^branchgate-agent: /, ''));
  });
}

async function forgetIdentity({ machine, settings, options }: Context): Promise<void> {
  const folder = settings.STATE_DIR;
  const own = ['host.json', 'host.pending.json', 'run.json', 'rules', 'pooler', 'extensions'].map(
    (name) => `${folder}/${name}`,
  );
  for (const path of own.filter(machine.exists))
    await machine.change(`removed ${path}`, () => machine.remove(path));
  machine.note(`remove the host at the gateway too: branchgate host remove ${options.host ?? '<name>'}`);
}

const NeededTables = z.object({ needed: z.boolean() });

/** A dry run cannot ask if the role does not exist yet. */
async function needsTables(context: Context): Promise<boolean> {
  const ran = await runTool(context, ['--json', 'make-tables', '--check']);
  if (ran.code === 0) return NeededTables.parse(JSON.parse(ran.stdout)).needed;
  if (context.machine.isDryRun) return true;
  throw new StepFailure('failed', `the agent's tables cannot be read: ${lastLine(ran)}`);
}

/** Before `doctor`, which reads them. */
async function makeTables(context: Context): Promise<void> {
  const { machine } = context;
  if (await isInRecovery(context)) {
    machine.note('this host is a standby, which has the tables of its primary');
    return;
  }
  if (!(await needsTables(context))) return;
  await machine.change("made the agent's tables", async () => {
    const ran = await runTool(context, ['make-tables']);
    if (ran.code !== 0)
      throw new StepFailure('failed', `the agent's tables cannot be made: ${lastLine(ran)}`);
  });
}

async function examine(context: Context): Promise<void> {
  const { machine, options } = context;
  if (machine.isDryRun) return;
  const ran = await runTool(context, ['doctor']);
  const lines = ran.stdout.trim().split('\n');
  for (const line of lines) machine.note(line);
  const hasProblem = lines.some((line) => line.startsWith('problem: '));
  if (ran.code > 1 || (ran.code === 1 && !hasProblem))
    throw new StepFailure('failed', `doctor failed: ${lastLine(ran)}`);
  if (hasProblem && !options.despiteProblems)
    throw new StepFailure(
      'failed',
      'doctor found problems: mend them and run join again, or start the agent despite them with --despite-problems',
    );
}

async function startAgent({ machine, settings }: Context): Promise<void> {
  await reloadUnits(machine, [AGENT_UNIT]);
  if (await isActive(machine, AGENT_UNIT))
    await restartOutdated(machine, AGENT_UNIT, [SETTINGS_FILE, ...Object.values(AGENT_FILES)]);
  await enable(machine, AGENT_UNIT);
  if (machine.isDryRun) return;
  const stateDir = machine.at(settings.STATE_DIR);
  const isLinked = await pollUntil(
    async () => {
      const record = readRunRecord(stateDir);
      return record?.linked === true && isRunning(stateDir, record);
    },
    { within: LINK_WITHIN_MS, every: 100 },
  );
  if (!isLinked)
    throw new StepFailure(
      'unreachable',
      `the agent does not link to ${settings.GATEWAY_URL}: journalctl --unit ${AGENT_UNIT}`,
    );
  machine.note('the agent is linked');
}

export const GATEWAY_STEP: Step = {
  name: 'gateway',
  what: 'check that the gateway responds, and the clock',
  apply: checkGateway,
};

export const ENROLMENT_STEP: Step = {
  name: 'enrolment',
  what: 'exchange the one-time token for the identity of this host',
  apply: enrol,
  takeBack: forgetIdentity,
  isTakenBackLate: true,
};

export const TABLES_STEP: Step = {
  name: 'tables',
  what: "make the agent's own database and its tables, on a primary",
  apply: makeTables,
};

export const DOCTOR_STEP: Step = {
  name: 'doctor',
  what: 'check both servers, and stop if there is a problem',
  apply: examine,
};

export const START_STEP: Step = {
  name: 'start',
  what: 'start the agent, and wait until it is linked',
  apply: startAgent,
  takeBack: ({ machine }) => disable(machine, AGENT_UNIT),
};
