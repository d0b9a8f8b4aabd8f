// Runs a declarative Jenkinsfile without Jenkins: `groovy jenkins_steps.groovy JENKINSFILE CHANGE_ID`.
// Each section runs its block. `sh` runs in a real shell; the other steps are printed. The last line is the result.
class Steps extends Script {
    static result = 'SUCCESS'
    static variables = [:]

    def run() { null }

    def pipeline(Closure block) { block() }

    def agent(Closure block) { block() }

    def options(Closure block) { block() }

    def environment(Closure block) {
        block.resolveStrategy = Closure.DELEGATE_FIRST
        block.delegate = variables
        block()
    }

    def stages(Closure block) {
        try {
            block()
        } catch (IllegalStateException failure) {
            result = 'FAILURE'
            println failure.message
        }
    }

    def stage(String name, Closure block) { block() }

    def steps(Closure block) { block() }

    def script(Closure block) { block() }

    def post(Closure block) { block() }

    def always(Closure block) { block() }

    def unstable(String message) { result = 'UNSTABLE' }

    def error(String message) { throw new IllegalStateException(message) }

    def sh(Map arguments) {
        def environment = System.getenv() + variables + [CHANGE_ID: env.CHANGE_ID ?: '']
        def process = ['bash', '-c', arguments.script].execute(environment.collect { "${it.key}=${it.value}" }, null)
        process.waitForProcessOutput(System.out, System.err)
        if (arguments.returnStatus) { return process.exitValue() }
        if (process.exitValue()) { error("sh: exit code ${process.exitValue()}") }
    }

    def getEnv() { [CHANGE_ID: binding.getVariable('args')[1]] }

    def string(Map arguments) { arguments }

    def withCredentials(List credentials, Closure block) { block() }

    def label(String expression) { println "label $expression" }

    def timeout(Map arguments) { println "timeout $arguments" }

    def junit(Map arguments) { println "junit $arguments" }

    def archiveArtifacts(Map arguments) { println "archiveArtifacts $arguments" }
}

def configuration = new org.codehaus.groovy.control.CompilerConfiguration(scriptBaseClass: Steps.name)
def binding = new Binding(args: args)
new GroovyShell(this.class.classLoader, binding, configuration).evaluate(new File(args[0]))
println Steps.result
