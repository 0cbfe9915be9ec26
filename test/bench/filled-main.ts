import type { Api, Credentials, ProjectBody } from '../support/api.ts';
import { fillLedger } from '../support/load.ts';

export interface FilledMain {
  project: ProjectBody;
  main: Credentials;
}

/** A new project with about `megabytes` of rows in its main database, which this machine may connect to. */
export async function filledMain(api: Api, name: string, megabytes: number): Promise<FilledMain> {
  const project = await api.project(name, { storage_quota_gib: 5 });
  await api.allow(project.id);
  const main = await api.credentials(project.id, 'main');
  await fillLedger(main.direct_url, megabytes);
  return { project, main };
}
