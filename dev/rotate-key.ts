import { Command } from 'commander';
import { readProviderSettings, runCommand, wholeSeconds } from './command-line.ts';
import { rotateKey } from './identity-provider/key-ring.ts';

/** `npm run dev:rotate-key`: the local identity provider signs with a new key from now on. */

const command = new Command('dev:rotate-key')
  .description('Make a new signing key; the present one is withdrawn from the key document later')
  .option(
    '--withdraw-after <seconds>',
    'how long tokens of the present key can be verified',
    wholeSeconds,
    3600,
  )
  .action(async ({ withdrawAfter }: { withdrawAfter: number }) => {
    const withdrawnAt = new Date(Date.now() + withdrawAfter * 1000);
    const kid = await rotateKey(readProviderSettings().stateDir, withdrawnAt);
    console.log(`new key ${kid}; the former one is withdrawn at ${withdrawnAt.toISOString()}`);
  });

await runCommand(() => command.parseAsync());
