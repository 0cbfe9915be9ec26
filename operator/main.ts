import { Command, CommanderError } from 'commander';
import { CommandError, EXIT_CODES, errorRecord, exitCodeOf, explain } from '../cli/exit-codes.ts';
import { collect, readCount } from '../cli/option-values.ts';
import { complain, isJson, printRecord, printRecords, printText, say } from '../cli/output.ts';
import { printableJson } from '../shared/printable.ts';
import type { DeployOptions } from './begin-deployment.ts';
import { type DeployResult, deploy } from './deploy.ts';
import { diagnose } from './doctor.ts';
import { exportAudit } from './export-audit.ts';
import { rotateKeys } from './rotate-keys.ts';

const EXIT_HELP = (['ok', 'failed', 'usage', 'notFound', 'notSignedIn', 'conflict', 'away'] as const)
  .map((name) => `  ${EXIT_CODES[name].code}  ${EXIT_CODES[name].meaning}`)
  .join('\n');

const ENVIRONMENT = `  CLOUDFLARE_API_TOKEN   a token of Cloudflare, instead of \`npx wrangler login\`
  CLOUDFLARE_ACCOUNT_ID  the account, if the token cannot list it
  MAIL_API_KEY           key of the mail service, which is sent as a secret
  IDP_CLIENT_SECRET      secret of the gateway's client at the sign-in provider, which is sent as a secret
  DNS_API_TOKEN          token that may edit the DNS records of DNS_ZONE_ID, which is sent as a secret
  HTTPS_PROXY, NO_PROXY  proxy of this machine`;

/** Adds options that can follow the name of the command as well. */
const withFolder = (command: Command) =>
  command
    .option('--folder <path>', 'folder with the record of this deployment', '.branchgate')
    .option('--json', 'print the result as JSON');

const withSettings = (command: Command) =>
  withFolder(command)
    .option('--var <NAME=value>', 'a setting of the gateway; can be repeated', collect)
    .option('--mail-from <sender>', 'sender of its mails')
    .option('--secrets-file <path>', 'file for your copy of the secrets, readable by you alone')
    .option('--artifacts <folder>', 'deploy the files of a release instead of this checkout')
    .option(
      '--wait <seconds>',
      'time for the gateway to answer (default: 60; 600 for a new domain)',
      readCount,
    )
    .option('--dry-run', 'print what would be done, and change nothing');

const program = withSettings(
  new Command('npm run deploy --')
    .description('Deploy a gateway to Cloudflare, or complete a deployment. A second run changes nothing.')
    .exitOverride()
    .helpCommand(false)
    .showHelpAfterError('See `npm run deploy -- --help`.')
    .enablePositionalOptions()
    .addHelpText('after', `\nExit codes:\n${EXIT_HELP}\n\nEnvironment:\n${ENVIRONMENT}`),
)
  .option('--name <name>', 'name of the Worker and its database')
  .option('--address <host>', 'address of the gateway, in a domain of the account')
  .option('--owner <email>', 'first owner, who gets an invitation')
  .option('--tenant <id>', 'tenant of the first owner (default: the name)')
  .option('--account <id>', 'account at Cloudflare, if the login has several')
  .option('--adopt', 'continue an earlier deployment whose record is lost')
  .option('--take-address', 'replace the DNS record that the address has')
  .action((options: DeployOptions, command: Command) => report(command, options, () => deploy(options)));

withSettings(program.command('upgrade'))
  .description('Apply migrations, then upload the Worker; the version before returns if it does not answer')
  .action((options: DeployOptions, command: Command) =>
    report(command, options, () => deploy(options, true)),
  );

withSettings(program.command('rotate-keys'))
  .description('Put a new key first in CREDENTIAL_KEYS and JWT_KEYS, and keep the old ones')
  .action((options: DeployOptions, command: Command) => report(command, options, () => rotateKeys(options)));

withFolder(program.command('doctor'))
  .description(
    'Check the gateway, D1, mail, the sign-in provider, and DNS, certificates and backups of the hosts',
  )
  .action(async ({ folder }: { folder: string }, command: Command) => {
    const checks = await diagnose(folder);
    if (isJson(command)) printRecord(command, { checks });
    else printRecords(command, checks, ['check', 'ok', 'result']);
    if (checks.some(({ ok }) => !ok)) throw new CommandError('failed', 'A check failed: see above.');
  });

withFolder(program.command('export-audit <file>'))
  .description('Append the audit events that the file lacks, and let the gateway delete what it then has')
  .action(async (file: string, { folder }: { folder: string }, command: Command) => {
    const events = await exportAudit(folder, file);
    if (isJson(command)) printRecord(command, { file, events });
    else printText(`${events} events were added to ${file}.\n`);
  });

async function report(
  command: Command,
  { dryRun }: DeployOptions,
  work: () => Promise<DeployResult>,
): Promise<void> {
  const result = await work();
  if (isJson(command)) {
    printRecord(command, { ...result });
    return;
  }
  const { done, address, secrets_file: file } = result;
  if (dryRun) for (const { what } of done) printText(`Would do: ${what}.\n`);
  if (done.length === 0) say(`${address} is complete; nothing was changed.`);
  else if (!dryRun)
    say(`${address} is deployed. Next, add a database host:\n\n${nextCommands(address, file)}`);
}

/**
 * They read the operator's secret from its file, so that it is neither on the screen nor in the shell's
 * history.
 */
const nextCommands = (address: string, file: string) => `  export BRANCHGATE_URL=${address}
  export BRANCHGATE_PLATFORM_SECRET="$(sed -n 's/^PLATFORM_SECRET=//p' '${file}')"
  branchgate host add db1 --address db1.${address.replace(/^https:\/\/[^.]*\./, '')}`;

let failed = program;
program.hook('preAction', (_program, command) => {
  failed = command;
});
for (const command of [program, ...program.commands])
  command.configureOutput({
    writeErr: (text) => process.argv.includes('--json') || complain(text),
  });

try {
  await program.parseAsync();
} catch (error) {
  process.exitCode = exitCodeOf(error);
  if (process.argv.includes('--json')) {
    if (process.exitCode !== EXIT_CODES.ok.code) say(printableJson(errorRecord(error, failed)));
  } else if (!(error instanceof CommanderError)) {
    say(`deploy: ${explain(error, failed)}`);
  }
}
