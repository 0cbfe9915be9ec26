import { Command, Option } from 'commander';
import { readProviderSettings, runCommand, wholeSeconds } from './command-line.ts';
import { accessToken, SCOPES, scopeNames } from './identity-provider/access-token.ts';

/** `npm run --silent dev:token`: prints an access token without a browser. The stack need not run. */

interface Options {
  email: string;
  tenant: string;
  role: string;
  scope?: (typeof SCOPES)[number];
  expiresIn: number;
}

const command = new Command('dev:token')
  .description('Print an access token signed by the local identity provider')
  .requiredOption('--email <address>', 'address of the user; the same address is always the same user')
  .requiredOption('--tenant <id>', 'id of the organization (ctx.tenant_id)')
  .requiredOption(
    '--role <role>',
    'owner, admin, operator, viewer, or another role name of an identity provider',
  )
  .addOption(new Option('--scope <scope>', 'a single scope (default: both)').choices(SCOPES))
  .option('--expires-in <seconds>', 'validity of the token', wholeSeconds, 3600)
  .addHelpText(
    'after',
    '\nExample:\n  npm run --silent dev:token -- --email ada@example.com --tenant acme --role owner',
  )
  .action(async ({ email, tenant, role, scope, expiresIn }: Options) => {
    const { stateDir, serviceName } = readProviderSettings();
    const issuedAt = new Date();
    const token = await accessToken(stateDir, {
      email,
      role,
      tenant,
      scopes: scopeNames(scope ? [scope] : SCOPES, serviceName),
      issuedAt,
      expiresAt: new Date(issuedAt.getTime() + expiresIn * 1000),
    });
    console.log(token);
  });

await runCommand(() => command.parseAsync());
