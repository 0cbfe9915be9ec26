import { Command } from 'commander';
import { readMemory } from '../pooler/admin-console.ts';
import { askForRestart, forgetAsking, isAskedFor, readRestart } from '../pooler/restart-state.ts';
import { pollUntil } from '../process/loops.ts';
import { UsageError } from './exit-codes.ts';
import { print } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

const TAKEN_UP = { within: 30_000, every: 100 };
const ENDED = { within: Infinity, every: 250 };

export const poolerCommand = () =>
  new Command('pooler').description("Manage the host's PgBouncer").addCommand(restartCommand());

const restartCommand = () =>
  new Command('restart')
    .description('Restart PgBouncer without disconnecting clients: ask the running agent, and wait')
    .action(async (_options, command: Command) => {
      const settings = readShellSettings();
      if (settings.POOLER_STANDBY_PORT === 0)
        throw new UsageError(
          "POOLER_STANDBY_PORT is not set: load the agent's settings (set -a; . /etc/branchgate/agent.env), or install the standby first",
        );
      const before = await readMemory(settings);
      const isUnderWay = async () => readRestart(settings).phase !== 'none';
      // One that is under way is waited for.
      if (!(await isUnderWay())) askForRestart(settings);
      const isTakenUp = async () => !isAskedFor(settings) || isUnderWay();
      if (!(await pollUntil(isTakenUp, TAKEN_UP))) {
        forgetAsking(settings);
        throw new Error('the agent does not take it up: start the agent, and read its log');
      }
      await pollUntil(async () => !(await isUnderWay()), ENDED);
      const { failure } = readRestart(settings);
      if (failure !== null) throw new Error(`PgBouncer was not restarted: ${failure}`);
      print(command, { memory_bytes_before: before, memory_bytes: await readMemory(settings) });
    });
