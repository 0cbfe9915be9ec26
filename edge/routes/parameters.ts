import { z } from 'zod';

/** Path parameters. What is no UUID where one must stand names nothing: 404, not 422. */
const Id = z.uuid().toLowerCase();

export const ProjectParams = z.strictObject({ project_id: Id });
export const BranchParams = z.strictObject({ project_id: Id, branch_id: Id });
/** `branch_ref`: a branch's UUID or its name (spec 4.3). */
export const BranchRefParams = z.strictObject({ project_id: Id, branch_ref: z.string() });
/** `table`: a table's name, without its schema. */
export const TableParams = BranchRefParams.extend({ table: z.string() });
export const RuleParams = z.strictObject({ project_id: Id, rule_id: Id });
export const JobParams = z.strictObject({ job_id: Id });
export const HostParams = z.strictObject({ host_id: Id });
