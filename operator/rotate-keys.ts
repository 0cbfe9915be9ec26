import { CommandError } from '../cli/exit-codes.ts';
import type { DeployOptions } from './begin-deployment.ts';
import { type DeployResult, deploy } from './deploy.ts';
import { DeploymentFolder } from './deployment.ts';
import { KEY_LISTS, nextKeyId, SecretsFile } from './secrets-file.ts';

/**
 * Puts a new key first in each list of keys and keeps the old ones, which still open what they have sealed. A
 * rotation that was interrupted is completed instead of begun again.
 */
export async function rotateKeys(options: DeployOptions): Promise<DeployResult> {
  const folder = new DeploymentFolder(options.folder);
  const deployment = folder.read();
  if (!deployment)
    throw new CommandError(
      'usage',
      `${options.folder} has no record of a deployment. Run \`npm run deploy\` first.`,
    );
  if (Object.keys(deployment.keys_to_rotate).length === 0) {
    const file = new SecretsFile(deployment.secrets_file, `https://${deployment.address}`);
    const secrets = file.read();
    for (const name of KEY_LISTS) {
      const keys = secrets[name];
      if (keys === undefined) throw file.missing(name);
      deployment.keys_to_rotate[name] = nextKeyId(keys);
    }
    if (!options.dryRun) folder.store(deployment);
  }
  return deploy(options);
}
