import { TEXT } from '../../strings.ts';
import { CodeField, NewPasswordField } from './first-factor.tsx';
import { StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface Props<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

export const CodeForm = ({ step, go }: Props<'code'>) => (
  <StepForm
    go={go}
    action={TEXT.signIn.continue}
    submit={async (value) => nextStep(await signIn.code(step.email, step.challengeId, value('code')))}
    more={
      <Way go={go} to={{ name: 'password' }}>
        {TEXT.signIn.back}
      </Way>
    }
  >
    <p className="quiet">{TEXT.signIn.codeSent(step.email)}</p>
    <CodeField />
  </StepForm>
);

export const ResetForm = ({ step, go }: Props<'reset'>) => (
  <StepForm
    go={go}
    action={TEXT.signIn.setPassword}
    submit={async (value) => {
      const { email, challengeId: challenge_id } = step;
      await signIn.reset({ email, challenge_id, code: value('code'), new_password: value('password') });
      return { name: 'password' };
    }}
    more={
      <Way go={go} to={{ name: 'password' }}>
        {TEXT.signIn.back}
      </Way>
    }
  >
    <p className="quiet">{TEXT.signIn.codeSent(step.email)}</p>
    <CodeField />
    <NewPasswordField label={TEXT.signIn.newPassword} />
  </StepForm>
);
