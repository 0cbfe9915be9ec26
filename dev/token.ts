import { Command, Option } from 'commander';
import { readProviderSettings, runCommand, wholeSeconds } from './command-line.ts';
import { accessToken, SCOPES, scopeNames } from './identity-provider/access-token.ts';

/** `npm run --silent dev:token`: an access token without a browser, whether the stack runs or not. */

interface Options {
  email: string;
  tenant: string;
  role: string;
  scope?: (typeof SCOPES)[number];
  expiresIn: number;
}

const command = new Command('dev:token')
  .description('Print an access token that the local identity provider has signed')
  .requiredOption('--email <address>', 'whose token; the same address is always the same user')
  .requiredOption('--tenant <id>', 'ctx.tenant_id: the organization')
  .requiredOption('--role <role>', 'owner, admin, operator, viewer, or as an identity provider would put it')
  .addOption(new Option('--scope <scope>', 'one scope alone (default: both)').choices(SCOPES))
  .option('--expires-in <seconds>', 'how long it holds', wholeSeconds, 3600)
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
