import { HOME, MAIN, type Operation, type OperationKind, type OperationOf } from './schedule.ts';

/**
 * What an operation depends on, and what it ends or changes for others. Concurrent operations do not conflict
 * here.
 */
export interface Dependencies {
  needs: string[];
  ends: string[];
}

const sql = ({ project, branch }: { project: string; branch: string }) => [
  `sql ${project}`,
  `sql ${project}/${branch}`,
];

/**
 * Calls of the API may race with the deletion of their resource; both responses are then permitted. SQL may
 * not race, because its client would retry forever.
 */
const DEPENDENCIES: { [Kind in OperationKind]: (operation: OperationOf<Kind>) => Dependencies } = {
  create_project: () => ({ needs: ['user'], ends: [] }),
  make_table: ({ project }) => ({ needs: sql({ project, branch: MAIN }), ends: [] }),
  delete_project: ({ project }) => ({ needs: [], ends: [`sql ${project}`] }),
  create_branch: ({ project, branch, source }) => ({
    needs: [content(project, source)],
    ends: [`name ${project}/${branch}`],
  }),
  create_batch: ({ project, branches, source }) => ({
    needs: [content(project, source)],
    ends: branches.map((branch) => `name ${project}/${branch}`),
  }),
  lease_branch: ({ project, branch, source }) => ({
    needs: [content(project, source)],
    ends: [`name ${project}/${branch}`],
  }),
  renew_lease: () => ({ needs: [], ends: [] }),
  delete_branch: ({ project, branch }) => ({
    needs: [protection(project, branch)],
    ends: [`sql ${project}/${branch}`],
  }),
  restore_branch: ({ project, branch }) => ({
    needs: [history(project)],
    ends: [`name ${project}/${branch}`],
  }),
  take_snapshot: ({ project, branch, snapshot }) => ({
    needs: [content(project, branch), history(project)],
    ends: [`snapshot ${project}/${snapshot}`],
  }),
  branch_snapshot: ({ project, branches, snapshot }) => ({
    needs: [`snapshot ${project}/${snapshot}`, history(project)],
    ends: branches.map((branch) => `name ${project}/${branch}`),
  }),
  reset_to_parent: ({ project, branch, source }) => ({
    needs: [protection(project, branch), content(project, source)],
    ends: [`sql ${project}/${branch}`, content(project, branch)],
  }),
  reset_to_snapshot: ({ project, branch, snapshot }) => ({
    needs: [protection(project, branch), `snapshot ${project}/${snapshot}`, history(project)],
    ends: [`sql ${project}/${branch}`, content(project, branch)],
  }),
  protect_branch: ({ project, branch }) => ({ needs: [], ends: [protection(project, branch)] }),
  add_rule: ({ project, rule }) => ({ needs: [], ends: [`rule ${project}/${rule}`] }),
  remove_rule: ({ project, rule }) => ({
    needs: [],
    ends: [`rule ${project}/${rule}`, ...(rule === HOME ? [`sql ${project}`] : [])],
  }),
  rotate: ({ project, branch }) => ({ needs: [], ends: [`sql ${project}/${branch}`] }),
  set_lifespan: ({ project, branch }) => ({ needs: [], ends: [`lifespan ${project}/${branch}`] }),
  write_by_sql: (operation) => ({ needs: sql(operation), ends: [rowKey(operation)] }),
  write_by_api: changeByApi,
  delete_by_api: changeByApi,
  // It may give up the snapshots and the deleted branches.
  move_project: ({ project }) => ({ needs: [], ends: [history(project)] }),
  // It ends the sessions of the project.
  set_durability: ({ project }) => ({ needs: [], ends: [`durability ${project}`] }),
  move_tenant: () => ({ needs: [], ends: ['user'] }),
};

const rowKey = ({ project, branch, row }: { project: string; branch: string; row: number }) =>
  `row ${project}/${branch}/${row}`;

const content = (project: string, branch: string) => `content ${project}/${branch}`;
const history = (project: string) => `history ${project}`;
const protection = (project: string, branch: string) => `protection ${project}/${branch}`;

function changeByApi(operation: { project: string; branch: string; row: number }): Dependencies {
  return { needs: [content(operation.project, operation.branch)], ends: [rowKey(operation)] };
}

export const dependenciesOf = (operation: Operation) =>
  (DEPENDENCIES[operation.kind] as (operation: Operation) => Dependencies)(operation);
