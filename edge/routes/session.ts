import { operations } from '../api/operation.ts';

const router = operations();

export const sessionRoutes = router;
