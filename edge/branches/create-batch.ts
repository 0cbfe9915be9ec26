import { type SagaContext, saga } from '../jobs/saga.ts';
import {
  activation,
  areActive,
  BUSY_WAIT_MS,
  type Creation,
  loadCreations,
  proofPassword,
  toActiveBranchResponse,
  undoCreation,
  verifiersOf,
} from './create-branch.ts';

type Batch = [Creation, ...Creation[]];

const identity = ({ job }: SagaContext) => ({ job_id: job.id, project_id: job.projectId });

const databases = (batch: Batch) =>
  batch.map(({ branch }) => ({ branch_id: branch.id, database: branch.databaseName }));

async function prepare(context: SagaContext, batch: Batch) {
  const branches = await Promise.all(
    batch.map(async (creation) => ({
      branch_id: creation.branch.id,
      database: creation.branch.databaseName,
      verifiers: await verifiersOf(context, creation),
    })),
  );
  await context.callHost('batch.prepare', { ...identity(context), branches, access: batch[0].access });
}

const clone = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.clone', {
    ...identity(context),
    branches: databases(batch),
    source: batch[0].branch.sourceDatabase,
    busy_wait: BUSY_WAIT_MS,
  });

const publish = (context: SagaContext, batch: Batch) =>
  context.callHost('batch.finalize', { ...identity(context), branches: databases(batch) });

async function prove(context: SagaContext, batch: Batch) {
  const branches = await Promise.all(
    batch.map(async (creation) => ({
      branch_id: creation.branch.id,
      database: creation.branch.databaseName,
      password: await proofPassword(context, creation),
    })),
  );
  await context.callHost('batch.prove', { ...identity(context), branches });
}

/** Creates several branches with the same content, all or none, with the steps of a single creation. */
export const createBatchJob = saga<Batch>({
  steps: [
    [
      { name: 'prepare', run: prepare },
      { name: 'clone', run: clone },
    ],
    [{ name: 'publish', run: publish }],
    [{ name: 'prove', run: prove }],
  ],
  load: async (context) => (await loadCreations(context)) as Batch | null,
  complete: activation,
  completed: areActive,
  response: (batch, now) => ({
    status: 201,
    body: { branches: batch.map((creation) => toActiveBranchResponse(creation, now)) },
  }),
  // The host builds the databases of a batch under the ids of their branches, because they have one job.
  undo: undoCreation((_jobId, branchId) => branchId),
});
