import type { Api, Credentials, ProjectBody } from '../support/api.ts';
import { fillLedger } from '../support/load.ts';

export interface FilledMain {
  project: ProjectBody;
  main: Credentials;
}

/** Creates a project with about `megabytes` of rows in main and a rule for this machine. */
export async function filledMain(api: Api, name: string, megabytes: number): Promise<FilledMain> {
  const project = await api.project(name, { storage_quota_gib: 5 });
  await api.allow(project.id);
  const main = await api.credentials(project.id, 'main');
  await fillLedger(main.direct_url, megabytes);
  return { project, main };
}
