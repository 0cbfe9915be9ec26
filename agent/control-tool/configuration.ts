import { userInfo } from 'node:os';
import { Argument, Command } from 'commander';
import { CONFIGURATION_FILES, type ConfigurationFile, layoutOf } from '../join/configuration-files.ts';
import type { ServerLayout } from '../servers/configuration.ts';
import { UsageError } from './exit-codes.ts';
import { printText } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

interface Options {
  tlsCert?: string;
  tlsKey?: string;
  listen: string;
  agentUser: string;
  poolerUser?: string;
}

/** Prints one configuration file for a new host, from the agent's own settings. */
export const configurationCommand = () =>
  new Command('configuration')
    .description(
      'Print a configuration file or a systemd unit of PostgreSQL, PgBouncer, the agent or the backups, or the base of its packet filter',
    )
    .addArgument(new Argument('<file>').choices(Object.keys(CONFIGURATION_FILES)))
    .option('--tls-cert <path>', 'TLS certificate of both servers (PEM), for files that name it')
    .option('--tls-key <path>', 'private key of the certificate (PEM), for files that name it')
    .option('--listen <addresses>', 'addresses that both servers listen on', '*')
    .option('--agent-user <user>', "the agent's and PostgreSQL's system user", userInfo().username)
    .option('--pooler-user <user>', "PgBouncer's system user (default: the agent's)")
    .action((file: ConfigurationFile, options: Options) => {
      const layout = layoutOf(readShellSettings(), {
        listenAddresses: options.listen,
        get tls() {
          return tlsFiles(options);
        },
        agentUser: options.agentUser,
        poolerUser: options.poolerUser ?? options.agentUser,
      });
      printText(CONFIGURATION_FILES[file](layout));
    });

function tlsFiles({ tlsCert, tlsKey }: Options): ServerLayout['tls'] {
  if (!tlsCert || !tlsKey)
    throw new UsageError(
      '--tls-cert and --tls-key are missing: give the certificate and key of both servers',
    );
  return { certFile: tlsCert, keyFile: tlsKey };
}
