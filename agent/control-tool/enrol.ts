import { Command } from 'commander';
import { makeRulesFolder } from '../access/rule-files.ts';
import { EnrolledError, EnrolmentError, enrol, TokenRefusedError } from '../link/enrol.ts';
import { rulesFolder } from '../process/settings.ts';
import { GatewayError, RefusedError, UsageError } from './exit-codes.ts';
import { print, readValue } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

interface Options {
  gateway?: string;
  token: string;
  force?: boolean;
}

export const enrolCommand = () =>
  new Command('enrol')
    .description('Register this host with its gateway, once, with a one-time token')
    .option('--gateway <url>', 'address of the gateway (default: GATEWAY_URL)')
    .requiredOption(
      '--token <token>',
      'the one-time token; `@file` reads it from a file, `-` from standard input',
    )
    .option('--force', 'replace the identity of a host that is already enrolled')
    .action(async (options: Options, command: Command) => {
      const settings = readShellSettings();
      const gatewayUrl = options.gateway ?? settings.GATEWAY_URL;
      if (!gatewayUrl)
        throw new UsageError('the address of the gateway is missing: give --gateway, or set GATEWAY_URL');
      const token = String(await readValue('text', 'token', options.token));
      const { host_id } = await enrol({
        gatewayUrl,
        stateDir: settings.STATE_DIR,
        token,
        force: options.force ?? false,
      }).catch((error) => {
        if (error instanceof EnrolledError || error instanceof TokenRefusedError)
          throw new RefusedError(error.message);
        throw error instanceof EnrolmentError ? new GatewayError(error.message) : error;
      });
      await makeRulesFolder(rulesFolder(settings));
      print(command, { host_id });
    });
