elasticdl train --job_name=flowers --image_name=elasticdl/elasticdl:v2 --worker_image=flowers:3 \
    --job_command="python -m flowers.classify --rounds 5" --num_workers=3 --num_minibatches_per_task=4 \
    --master_resource_request=cpu=0.5,memory=2Gi --master_resource_limit=cpu=2,memory=4Gi \
    --worker_resource_request=cpu=2,memory=3Gi --worker_resource_limit=cpu=4,memory=6Gi --envs=COLOR=red,SIZE=7 \
    --volume="host_path=/srv/flowers,mount_path=/flowers" --image_pull_policy=Always \
    --distribution_strategy=AllreduceStrategy
