import { Command } from 'commander';
import { readProviderSettings, runCommand, wholeSeconds } from './command-line.ts';
import { rotateKey } from './identity-provider/key-ring.ts';

/** `npm run dev:rotate-key`: makes the local identity provider sign with a new key. */

const command = new Command('dev:rotate-key')
  .description('Create a new signing key, and remove the present one from the key document later')
  .option('--withdraw-after <seconds>', 'how long tokens of the present key stay valid', wholeSeconds, 3600)
  .action(async ({ withdrawAfter }: { withdrawAfter: number }) => {
    const withdrawnAt = new Date(Date.now() + withdrawAfter * 1000);
    const kid = await rotateKey(readProviderSettings().stateDir, withdrawnAt);
    console.log(`new key ${kid}; the former one is removed at ${withdrawnAt.toISOString()}`);
  });

await runCommand(() => command.parseAsync());
