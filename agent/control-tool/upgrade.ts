import { realpathSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { Command, Option } from 'commander';
import type { AgentSettings } from '../process/settings.ts';
import { askToEnd, awaitLink, type Outcome, runningAgent } from '../upgrade/await-link.ts';
import {
  forgetPrevious,
  INSTALLATION_STEPS,
  type Installation,
  readVersion,
  restorePrevious,
} from '../upgrade/install-program.ts';
import {
  claimName,
  installedProgram,
  type Proof,
  sha256Of,
  upgradeName,
  verifyProgram,
} from '../upgrade/program-file.ts';
import { RefusedError, UsageError } from './exit-codes.ts';
import { CLONES_END_WITHIN_MS } from './run-agent.ts';
import { print, readValue } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

/** For the restart by the service manager and for falling back, next to the trial itself. */
const RESTARTS_MS = 30_000;

interface Options {
  sha256?: string;
  signature?: string;
  publicKey?: string;
  program?: string;
}

/** Replaces the installed program, and restarts the agent with it. */
export const upgradeCommand = () =>
  new Command('upgrade')
    .description('Install another release of the agent and restart it; go back if it does not link')
    .argument('<file>', 'the new program')
    .option('--sha256 <checksum>', 'its checksum; `@file` reads it from the output of sha256sum')
    .addOption(
      new Option('--signature <file>', 'its Ed25519 signature, instead of a checksum').conflicts('sha256'),
    )
    .option('--public-key <file>', 'the key of the signature (PEM)')
    .option('--program <path>', 'the installed program to replace (default: this one)')
    .addHelpText('after', '\nThe agent lets clones finish. Its service manager must restart it when it ends.')
    .action(upgrade);

async function upgrade(file: string, options: Options, command: Command): Promise<void> {
  const settings = readShellSettings();
  const program = options.program === undefined ? installedProgram() : realpathSync(options.program);
  const bytes = await readFile(file);
  await verifyProgram(bytes, await proofOf(options));
  // A second upgrade would take the program of the first one for proven, and each would go back to what the
  // other has left.
  const release = await claimName(upgradeName(program));
  if (!release)
    throw new RefusedError('another upgrade of this program is in progress: wait until it has ended');
  try {
    await replace({ program, stateDir: settings.STATE_DIR, bytes }, settings, command);
  } finally {
    await release();
  }
}

async function replace(installation: Installation, settings: AgentSettings, command: Command): Promise<void> {
  const { program, stateDir, bytes } = installation;
  const sha256 = sha256Of(bytes);
  const before = runningAgent(stateDir);
  for (const step of INSTALLATION_STEPS) await step(installation);
  const version = await readVersion(program);

  // One that was killed meanwhile has ended, and its service manager starts the new program.
  const ending = askToEnd(stateDir) ?? before;
  if (ending === null) {
    print(command, { version, sha256, restarted: false }, [
      `${version} is installed. No agent was running, or one of an earlier release: restart its service.`,
    ]);
    return;
  }
  const outcome = await awaitLink(ending, {
    stateDir,
    sha256,
    endWithin: CLONES_END_WITHIN_MS + RESTARTS_MS,
    linkWithin: settings.UPGRADE_TRIAL_SECONDS * 1000 + RESTARTS_MS,
  });
  await FINISH[outcome](program, stateDir);
  print(command, { version, sha256, restarted: true }, [`${version} runs and is linked.`]);
}

const FINISH: Record<Outcome, (program: string, stateDir: string) => void> = {
  linked: forgetPrevious,
  fell_back(program) {
    restorePrevious(program);
    throw new Error("the new program did not link, so the one before it runs again: see the agent's log");
  },
  silent(program, stateDir) {
    restorePrevious(program);
    askToEnd(stateDir);
    throw new Error(
      'the new program did not report its link, so the one before it is installed again: restart the service of the agent',
    );
  },
};

async function proofOf({ sha256, signature, publicKey }: Options): Promise<Proof> {
  if (sha256 !== undefined) return { sha256: String(await readValue('text', 'sha256', sha256)) };
  if (signature !== undefined && publicKey !== undefined)
    return { signatureFile: signature, publicKeyFile: publicKey };
  throw new UsageError(
    'give --sha256, or --signature and --public-key: they show that the file is the intended one',
  );
}
